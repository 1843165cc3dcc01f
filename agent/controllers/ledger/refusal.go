package ledger

import (
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/agent/admissionpolicy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// isRefusedAsUnlisted tells that the admission policy finds a DataVolume in no slot,
// or knows of no ledger yet to look in. That is never a failed attempt: its parameter comes from a cache.
func isRefusedAsUnlisted(err error) bool {
	return apierrors.ReasonForError(err) != metav1.StatusReasonUnknown && strings.Contains(err.Error(), admissionpolicy.DataVolumePolicy)
}

// isPermanentRefusal tells a definite answer from one that trying again can change. That the
// agent has lost the right is no answer about an image: all would fail for it. What an
// authorizer says begins with the user (apiserver's responsewriters.Forbidden);
// admission, which forbids as well, does not.
func isPermanentRefusal(err error) bool {
	if apierrors.IsForbidden(err) && strings.Contains(err.Error(), `cannot create resource "datavolumes"`) {
		return false
	}
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) ||
		apierrors.IsNotFound(err) || apierrors.IsRequestEntityTooLargeError(err)
}

func newRefusalFailure(err error) v1alpha1.Failure {
	f := v1alpha1.Failure{Reason: v1alpha1.ReasonDataVolumeRefused, Message: "its DataVolume was refused: " + err.Error()}
	if strings.Contains(err.Error(), "exceeded quota: ") {
		f.Reason = v1alpha1.ReasonQuotaExceeded
	}
	return f
}
