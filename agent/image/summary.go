package image

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// summarizeStatus writes phase, reason, message and conditions: all in one place, and
// all of them on every visit.
func (s *step) summarizeStatus() {
	st := s.status
	st.ObservedGeneration = s.Image.Generation
	e := findRevision(st.Revisions, s.targetRevision)
	if e != nil {
		// Those of other revisions stand between its own and the new round.
		st.Attempts = max(0, max(e.Attempt, e.AttemptEnded)-e.AttemptsBefore)
	}
	s.updateQueuePosition()
	switch s.activity.Reason {
	case v1alpha1.ReasonWaitingForSlot:
		s.activity.Message = "waits for a slot"
		if st.QueuePosition != nil {
			s.activity.Message = queuePositionMessage(*st.QueuePosition)
		}
	case v1alpha1.ReasonWaitingForFleet:
		s.activity.Message = "waits for the hub: the fleet-wide budget has no place for it now (see kubectl describe syncledger)"
	case v1alpha1.ReasonWaitingForSource:
		s.activity.Message = "waits for its source: as many as the fleet-wide budget grants are imported from there (see kubectl describe syncledger)"
	}
	if s.activity.Reason == "" { // torn down
		s.activity = Blocker{v1alpha1.ReasonDeleted, "nothing holds it: its storage is being removed"}
	}

	phase := s.computePhase()
	shown := s.activity
	switch {
	case s.Image.DeletionTimestamp == nil && s.pendingPrune() != nil:
		st.Phase = v1alpha1.PhasePrunePending
		shown = Blocker{v1alpha1.ReasonUndoWindowOpen, s.status.Prune.Message}
		if phase == v1alpha1.PhaseFailed {
			shown.Message += "; it has failed: " + s.activity.Message
		}
	case s.Image.DeletionTimestamp == nil:
		st.Phase = phase
	case st.Phase == v1alpha1.PhaseTerminating:
		shown = Blocker{v1alpha1.ReasonReferenced, fmt.Sprintf("is to be deleted, and serves on until these let go of it: %s", s.listHolders())}
	default:
		shown = Blocker{v1alpha1.ReasonDeleted, "nothing holds it: its storage is being removed"}
	}
	st.Reason, st.Message = shown.Reason, shown.Message
	if shown.Reason == v1alpha1.ReasonReady {
		st.Message += s.describeRetainedRevisions()
	}

	s.setCondition(v1alpha1.ConditionReady, s.activity.Reason == v1alpha1.ReasonReady && st.Phase != v1alpha1.PhaseDeleting, shown)
	imported := e != nil && e.Outcome == v1alpha1.OutcomeSucceeded && e.Attempt <= e.AttemptEnded
	s.setCondition(v1alpha1.ConditionImported, imported, s.activity)
	s.setCondition(v1alpha1.ConditionSnapshotReady, s.activity.Reason == v1alpha1.ReasonReady, s.activity)
	stalled := phase == v1alpha1.PhaseFailed || needsUserAction(s.activity.Reason)
	s.setCondition(v1alpha1.ConditionStalled, stalled, shown)
	s.setCondition(v1alpha1.ConditionReconciling, !stalled && (phase == v1alpha1.PhaseQueued || phase == v1alpha1.PhaseSyncing || s.Image.DeletionTimestamp != nil), shown)
}

// computePhase is where the current revision is, whatever is to become of the image.
func (s *step) computePhase() v1alpha1.Phase {
	e := findRevision(s.status.Revisions, s.targetRevision)
	switch {
	case s.activity.Reason == v1alpha1.ReasonReady:
		return v1alpha1.PhaseSucceeded
	case e != nil && (hasFailedPermanently(e) || hasSnapshotFailed(e)):
		return v1alpha1.PhaseFailed
	case s.activity.Reason == v1alpha1.ReasonImporting, e != nil && e.Outcome == v1alpha1.OutcomeSucceeded:
		return v1alpha1.PhaseSyncing // an import runs, or its snapshot is still to come
	default:
		return v1alpha1.PhaseQueued
	}
}

// needsUserAction tells the waits that end only when somebody does something.
func needsUserAction(r v1alpha1.Reason) bool {
	switch r {
	case v1alpha1.ReasonPolicyMissing, v1alpha1.ReasonStorageClassMissing, v1alpha1.ReasonSnapshotClassMissing,
		v1alpha1.ReasonSecretMissing, v1alpha1.ReasonCertConfigMapMissing, v1alpha1.ReasonCDIMissing,
		v1alpha1.ReasonInsufficientStorage:
		return true
	default:
		return false
	}
}

func (s *step) setCondition(t string, holds bool, why Blocker) {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&s.status.Conditions, metav1.Condition{
		Type: t, Status: status, Reason: string(why.Reason), Message: why.Message,
		ObservedGeneration: s.Image.Generation, LastTransitionTime: s.now,
	})
}

// updateQueuePosition stores the place in the queue when it is new or has fallen below
// another power of ten: a write for each admission of each image that waits
// would make the queue's cost grow with its square.
func (s *step) updateQueuePosition() {
	switch {
	case !queued(s.activity.Reason) || s.QueuePosition == nil:
		s.status.QueuePosition = nil
	case s.status.QueuePosition == nil || countDigits(*s.QueuePosition) < countDigits(*s.status.QueuePosition):
		p := *s.QueuePosition
		s.status.QueuePosition = &p
	}
}

func queuePositionMessage(n int32) string {
	switch n {
	case 0:
		return "waits for a slot; it is next"
	case 1:
		return "waits for a slot; one image goes first"
	default:
		return fmt.Sprintf("waits for a slot; at most %d images go first", n)
	}
}

func countDigits(n int32) int {
	d := 0
	for ; n > 0; n /= 10 {
		d++
	}
	return d
}

func (s *step) listHolders() string {
	return joinNames(s.status.References.Holders, int(s.status.References.Count))
}

// describeRetainedRevisions says for whom more of the image is kept than what it serves.
func (s *step) describeRetainedRevisions() string {
	var names []string
	for i := range s.Holders {
		pin := s.Holders[i].Pin
		if pin != nil && pin.UID == s.Image.UID && (pin.Attempt != s.status.Serving.Attempt || (pin.VolumeSnapshot != "" && pin.VolumeSnapshot != s.status.Serving.VolumeSnapshot)) {
			names = append(names, s.Holders[i].Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; what came before is kept for those built from it: " + joinNames(names[:min(maxShownHolders, len(names))], len(names))
}

// joinNames shows the first few of n names.
func joinNames(names []string, n int) string {
	text := strings.Join(names, ", ")
	if more := n - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
