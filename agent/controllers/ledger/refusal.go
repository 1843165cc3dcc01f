package ledger

import (
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// unlisted is how the agent's admission policy begins its refusal of a
// DataVolume that it finds in no slot (charts/ot-agent).
const unlisted = "DataVolume is not in a slot of the SyncLedger"

// refusedAsUnlisted tells that the admission policy does not know of a slot
// yet. That is never a failed attempt: its parameter comes from a cache.
func refusedAsUnlisted(err error) bool {
	return apierrors.ReasonForError(err) != "" && strings.Contains(err.Error(), unlisted)
}

// refusedForGood tells a definite answer from one that trying again can change.
func refusedForGood(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) ||
		apierrors.IsNotFound(err) || apierrors.IsRequestEntityTooLargeError(err)
}

func refusalFailure(err error) v1alpha1.Failure {
	f := v1alpha1.Failure{Reason: v1alpha1.ReasonDataVolumeRefused, Message: "the API server refused its DataVolume: " + err.Error()}
	if strings.Contains(err.Error(), "exceeded quota: ") {
		f.Reason = v1alpha1.ReasonQuotaExceeded
	}
	return f
}
