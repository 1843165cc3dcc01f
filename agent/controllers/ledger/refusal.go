package ledger

import (
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

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
