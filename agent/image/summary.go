package image

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// summarize writes phase, reason, message and conditions: all in one place, and
// all of them on every visit.
func (s *step) summarize() {
	st := s.st
	st.ObservedGeneration = s.Image.Generation
	e := find(st.Revisions, s.target)
	if e != nil {
		// Those of other revisions stand between its own and the new round.
		st.Attempts = max(0, max(e.Attempt, e.AttemptEnded)-e.AttemptsBefore)
	}
	s.tellPosition()
	switch s.wait.Reason {
	case v1alpha1.ReasonWaitingForSlot:
		s.wait.Message = "waits for a slot"
		if st.QueuePosition != nil {
			s.wait.Message = ahead(*st.QueuePosition)
		}
	case v1alpha1.ReasonWaitingForFleet:
		s.wait.Message = "waits for the hub: the fleet-wide budget has no place for it now (see kubectl describe syncledger)"
	case v1alpha1.ReasonWaitingForSource:
		s.wait.Message = "waits for its source: as many as the fleet-wide budget grants are imported from there (see kubectl describe syncledger)"
	}
	if s.wait.Reason == "" { // torn down
		s.wait = Blocker{v1alpha1.ReasonDeleted, "nothing holds it: its storage is being removed"}
	}

	phase := s.phase()
	shown := s.wait
	switch {
	case s.Image.DeletionTimestamp == nil && s.pendingPrune() != nil:
		st.Phase = v1alpha1.PhasePrunePending
		shown = Blocker{v1alpha1.ReasonUndoWindowOpen, s.st.Prune.Message}
		if phase == v1alpha1.PhaseFailed {
			shown.Message += "; it has failed: " + s.wait.Message
		}
	case s.Image.DeletionTimestamp == nil:
		st.Phase = phase
	case st.Phase == v1alpha1.PhaseTerminating:
		shown = Blocker{v1alpha1.ReasonReferenced, fmt.Sprintf("is to be deleted, and serves on until these let go of it: %s", s.holders())}
	default:
		shown = Blocker{v1alpha1.ReasonDeleted, "nothing holds it: its storage is being removed"}
	}
	st.Reason, st.Message = shown.Reason, shown.Message
	if shown.Reason == v1alpha1.ReasonReady {
		st.Message += s.keptBeside()
	}

	s.setCondition(v1alpha1.ConditionReady, s.wait.Reason == v1alpha1.ReasonReady && st.Phase != v1alpha1.PhaseDeleting, shown)
	imported := e != nil && e.Outcome == v1alpha1.OutcomeSucceeded && e.Attempt <= e.AttemptEnded
	s.setCondition(v1alpha1.ConditionImported, imported, s.wait)
	s.setCondition(v1alpha1.ConditionSnapshotReady, s.wait.Reason == v1alpha1.ReasonReady, s.wait)
	stalled := phase == v1alpha1.PhaseFailed || needsPerson(s.wait.Reason)
	s.setCondition(v1alpha1.ConditionStalled, stalled, shown)
	s.setCondition(v1alpha1.ConditionReconciling, !stalled && (phase == v1alpha1.PhaseQueued || phase == v1alpha1.PhaseSyncing || s.Image.DeletionTimestamp != nil), shown)
}

// phase is where the current revision is, whatever is to become of the image.
func (s *step) phase() v1alpha1.Phase {
	e := find(s.st.Revisions, s.target)
	switch {
	case s.wait.Reason == v1alpha1.ReasonReady:
		return v1alpha1.PhaseSucceeded
	case e != nil && (failedForGood(e) || snapshotFailed(e)):
		return v1alpha1.PhaseFailed
	case s.wait.Reason == v1alpha1.ReasonImporting, e != nil && e.Outcome == v1alpha1.OutcomeSucceeded:
		return v1alpha1.PhaseSyncing // an import runs, or its snapshot is still to come
	default:
		return v1alpha1.PhaseQueued
	}
}

// needsPerson tells the waits that end only when somebody does something.
func needsPerson(r v1alpha1.Reason) bool {
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
	meta.SetStatusCondition(&s.st.Conditions, metav1.Condition{
		Type: t, Status: status, Reason: string(why.Reason), Message: why.Message,
		ObservedGeneration: s.Image.Generation, LastTransitionTime: s.now,
	})
}

// tellPosition stores the place in the queue when it is new or has fallen below
// another power of ten: a write for each admission of each image that waits
// would make the queue's cost grow with its square.
func (s *step) tellPosition() {
	switch {
	case !queued(s.wait.Reason) || s.Position == nil:
		s.st.QueuePosition = nil
	case s.st.QueuePosition == nil || digits(*s.Position) < digits(*s.st.QueuePosition):
		p := *s.Position
		s.st.QueuePosition = &p
	}
}

func ahead(n int32) string {
	switch n {
	case 0:
		return "waits for a slot; it is next"
	case 1:
		return "waits for a slot; one image goes first"
	default:
		return fmt.Sprintf("waits for a slot; at most %d images go first", n)
	}
}

func digits(n int32) int {
	d := 0
	for ; n > 0; n /= 10 {
		d++
	}
	return d
}

func (s *step) holders() string {
	return list(s.st.References.Holders, int(s.st.References.Count))
}

// keptBeside says for whom more of the image is kept than what it serves.
func (s *step) keptBeside() string {
	var names []string
	for i := range s.Holders {
		pin := s.Holders[i].Pin
		if pin != nil && pin.UID == s.Image.UID && (pin.Attempt != s.st.Serving.Attempt || (pin.VolumeSnapshot != "" && pin.VolumeSnapshot != s.st.Serving.VolumeSnapshot)) {
			names = append(names, s.Holders[i].Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; what came before is kept for those built from it: " + list(names[:min(shownHolders, len(names))], len(names))
}

// list shows the first few of n names.
func list(names []string, n int) string {
	text := strings.Join(names, ", ")
	if more := n - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
