package image

import (
	"math"
	"slices"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// QueueStateOf returns how an image takes part in the queue, by its status.
func QueueStateOf(img *v1alpha1.VMDiskImage) ledger.QueueState {
	st := &img.Status
	if IsReleased(img) || st.TearDown || st.Phase == v1alpha1.PhaseDeleting || (img.DeletionTimestamp != nil && st.Phase != v1alpha1.PhaseTerminating) {
		return ledger.NotQueued
	}
	if UsesDataSource(&img.Spec) {
		return ledger.NotQueued
	}
	target := img.Spec.Revision()
	rev := findRevision(st.Revisions, target)
	if rev == nil || st.Revision != target {
		return ledger.Pending
	}
	if rev.Outcome == v1alpha1.OutcomeSucceeded || rev.Attempt > rev.AttemptEnded || hasFailedPermanently(rev) {
		return ledger.NotQueued
	}
	// Invariant: what the spec names is checked before an attempt, also after an edit.
	isChecked := st.ObservedGeneration == img.Generation
	switch reason := storedWaitReason(st); {
	case waitsForAdmission(reason) && isChecked && slices.Contains(img.Finalizers, v1alpha1.FinalizerImage):
		return ledger.Admissible
	case waitsForAdmission(reason) || reason == v1alpha1.ReasonChecking:
		return ledger.Pending
	default:
		return ledger.Skipped
	}
}

// CandidateOf returns the candidate for an image that was read live, and whether it
// may be admitted under the policy in force; nil for none.
//
// Invariant (S4): the limit counts that is in force when an attempt starts. The status
// may have been stored under a higher one.
func CandidateOf(img *v1alpha1.VMDiskImage, p *policy.Policy) (ledger.Candidate, bool) {
	if QueueStateOf(img) != ledger.Admissible {
		return ledger.Candidate{}, false
	}
	if rev := findRevision(img.Status.Revisions, img.Status.Revision); p != nil && hasUsedUpRetries(rev, *p) {
		return ledger.Candidate{}, false
	}
	if !hasAttemptLeft(img.Status.LastAttempt) {
		return ledger.Candidate{}, false
	}
	return ledger.Candidate{
		Image:    KeyOf(img),
		Revision: img.Status.Revision,
		Attempt:  NextAttempt(img.Status.LastAttempt),
		Host:     img.Spec.SourceHost(),
	}, true
}

// NextAttempt returns the number of the attempt after last. It can be stored in a ledger, whose
// other slots must not suffer from a status that somebody has edited.
func NextAttempt(last int32) int32 { return max(0, min(last, math.MaxInt32-1)) + 1 }

// hasAttemptLeft is false where somebody has edited the status: an attempt has one number.
func hasAttemptLeft(last int32) bool { return NextAttempt(last) > last }

// storedWaitReason is why the current revision waits. It outlives a phase such as
// Terminating, which has a reason of its own.
func storedWaitReason(st *v1alpha1.VMDiskImageStatus) v1alpha1.Reason {
	for i := range st.Conditions {
		if st.Conditions[i].Type == v1alpha1.ConditionImported {
			return v1alpha1.Reason(st.Conditions[i].Reason)
		}
	}
	return ""
}

// waitsForAdmission reports whether a wait ends with a slot: the image lacks
// nothing of its own.
func waitsForAdmission(r v1alpha1.Reason) bool {
	return hasQueuePosition(r) || r == v1alpha1.ReasonPaused || r == v1alpha1.ReasonPolicyMissing || r == v1alpha1.ReasonWaitingForWindow
}

// hasQueuePosition reports whether images that wait for a reason have a position in
// a queue that moves.
func hasQueuePosition(r v1alpha1.Reason) bool {
	return r == v1alpha1.ReasonWaitingForSlot || r == v1alpha1.ReasonWaitingForFleet || r == v1alpha1.ReasonWaitingForSource || r == v1alpha1.ReasonNamespaceShare
}
