package image

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// reconcilePrune takes an image that an ImagePrune has deleted through its undo window.
//
// It begins by a write, PrunePending, and ends by another one: Skipped for whatever
// makes the image another one than was reported, Undone when nobody asks for it any
// more. What has ended does not begin again, whatever an older plan says. Only what
// is stored as pending since its window opened is deleted, by a live View, and as it
// was before that View was read (DESIGN, S7). It serves on until then, and who comes
// to name it after the list of holders is seen by the one after the mark (S2).
func (s *step) reconcilePrune() {
	want := s.plannedPrune()
	if s.Image.DeletionTimestamp != nil {
		s.skipPruneWhileTerminating(want)
		return
	}
	if p := s.pendingPrune(); p != nil && !s.Plan.Unknown && (want == nil || want.UID != p.UID) {
		if !s.Live {
			s.decision.NeedsLiveRead = true // there is no way back, and the cache may show an older plan
			return
		}
		s.endPrune(p.UID, v1alpha1.PruneUndone, v1alpha1.PruneWithdrawn, "the hub does not ask for it any more")
	}
	p := s.pendingPrune()
	switch {
	case want == nil && p == nil:
	case want == nil: // nobody knows what is asked for: it waits, but not against those who need it
		if reason, message := s.reasonToSkipPrune(nil); reason != "" {
			s.endPrune(p.UID, v1alpha1.PruneSkipped, reason, message)
			return
		}
		s.requeueWithin(blockerRecheckInterval)
	case s.hasPruneEnded(want.UID):
		s.reportEndedPrune(want.UID)
	case want.Undo:
		s.endPrune(want.UID, v1alpha1.PruneUndone, v1alpha1.PruneUndoAsked, "its ImagePrune was undone")
	default:
		if reason, message := s.reasonToSkipPrune(want); reason != "" {
			s.endPrune(want.UID, v1alpha1.PruneSkipped, reason, message)
			return
		}
		s.awaitUndoWindow(want)
	}
}

// plannedPrune is what the plan asks for of this very image, nil for nothing: one of
// its name that came later is another image.
func (s *step) plannedPrune() *v1alpha1.PlannedPrune {
	if want := s.Plan.Prune; want != nil && want.ImageUID == s.Image.UID && !s.Plan.Unknown {
		return want
	}
	return nil
}

// pendingPrune is the prune whose undo window is open, nil for none.
func (s *step) pendingPrune() *v1alpha1.PruneStatus {
	if p := s.status.Prune; p != nil && p.State == v1alpha1.PrunePending {
		return p
	}
	return nil
}

// hasPruneEnded tells whether an ImagePrune has ended here.
func (s *step) hasPruneEnded(uid types.UID) bool {
	p := s.status.Prune
	return slices.Contains(s.status.EndedPrunes, uid) || (p != nil && p.UID == uid && p.State.IsFinal())
}

// skipPruneWhileTerminating ends the prune of an image that is to be deleted and is held: it may
// serve for as long as it likes. One that nobody holds goes, and what is told of its
// prune stays until it is gone.
func (s *step) skipPruneWhileTerminating(want *v1alpha1.PlannedPrune) {
	if s.status.Phase != v1alpha1.PhaseTerminating {
		return
	}
	uid := types.UID("")
	switch p := s.pendingPrune(); {
	case p != nil:
		uid = p.UID
	case want != nil && !s.hasPruneEnded(want.UID):
		uid = want.UID
	default:
		return
	}
	s.endPrune(uid, v1alpha1.PruneSkipped, v1alpha1.PruneReferenced, "is Terminating, and serves on until these let go of it: "+s.listHolders())
}

// reasonToSkipPrune says why an image stays that is to be pruned; empty where nothing speaks for
// that. want is nil where nobody knows what is asked for.
func (s *step) reasonToSkipPrune(want *v1alpha1.PlannedPrune) (reason, message string) {
	switch phase := s.computePhase(); {
	case s.Plan.Keep && !s.Plan.Unknown:
		return v1alpha1.PruneWanted, "the ClusterPlan wants it to be there"
	case len(s.Holders) > 0:
		return v1alpha1.PruneReferenced, "is referenced by " + s.listHolders()
	case want != nil && want.Revision != s.targetRevision:
		return v1alpha1.PruneChanged, "its source is another one than was reported"
	case want != nil && !want.Others && !IsPlanned(s.Image):
		return v1alpha1.PruneChanged, "no plan has made it, or somebody has taken it back by removing label " + v1alpha1.LabelPlanned + ": it goes only with spec.includeOthers of the ImagePrune"
	case want != nil && s.status.References.UnreferencedSince.Unix() > want.UnreferencedSince:
		return v1alpha1.PruneChanged, "a VirtualMachine has referenced it since it was reported, until " + s.status.References.UnreferencedSince.UTC().Format(time.RFC3339)
	case phase != v1alpha1.PhaseSucceeded && phase != v1alpha1.PhaseFailed:
		return v1alpha1.PruneInTransition, fmt.Sprintf("is %s: %s", phase, s.activity.Message)
	default:
		return "", ""
	}
}

// awaitUndoWindow opens the undo window, waits for its end, and then deletes.
func (s *step) awaitUndoWindow(want *v1alpha1.PlannedPrune) {
	if p := s.pendingPrune(); p == nil || p.Until == nil {
		s.openUndoWindow(want)
	}
	until := s.status.Prune.Until
	stored := s.Image.Status.Prune
	switch left := until.Sub(s.Now); {
	case left > 0:
		s.requeueWithin(left)
	case stored == nil || stored.UID != want.UID || stored.State != v1alpha1.PrunePending || !stored.Until.Equal(until):
		s.requeueWithin(0) // it is stored first: then whoever looks sees that it is to go
	case !s.Live:
		s.decision.NeedsLiveRead = true
	case !s.decision.DeleteImage: // else its time is over without the prune
		s.decision.DeleteImage, s.decision.Pruned = true, true
	}
}

// openUndoWindow opens the undo window. What is stored has full seconds: it is none
// shorter than was asked for.
func (s *step) openUndoWindow(want *v1alpha1.PlannedPrune) {
	until := s.now
	if window := want.UndoWindow.Duration; window > 0 {
		until = metav1.NewTime(s.Now.UTC().Add(window + time.Second - 1).Truncate(time.Second))
	}
	s.rememberReplacedPrune(want.UID)
	s.status.Prune = &v1alpha1.PruneStatus{
		UID: want.UID, State: v1alpha1.PrunePending, Until: &until,
		Message: fmt.Sprintf("is deleted after %s, for the hub's ImagePrune with UID %s. It serves until then; what keeps it is a VirtualMachine that references it, or spec.undo of that ImagePrune",
			until.UTC().Format(time.RFC3339), want.UID),
	}
}

// endPrune has a prune be over for good.
func (s *step) endPrune(uid types.UID, state v1alpha1.PruneState, reason, message string) {
	s.rememberReplacedPrune(uid)
	s.status.Prune = &v1alpha1.PruneStatus{UID: uid, State: state, Reason: reason, Message: message}
	if len(message) > maxPruneMessageLength {
		s.status.Prune.Message = strings.ToValidUTF8(message[:maxPruneMessageLength], "")
	}
	s.rememberPrune(uid)
}

// maxPruneMessageLength is what the message of a PruneStatus has room for.
const maxPruneMessageLength = 512

// reportEndedPrune tells of a prune that the plan has come back to after another one of the
// image: how it ended stood where that one's state stands now.
func (s *step) reportEndedPrune(uid types.UID) {
	if s.status.Prune == nil || s.status.Prune.UID != uid {
		s.endPrune(uid, v1alpha1.PruneUndone, v1alpha1.PruneWithdrawn, "it ended here before, and another prune of the image came after it")
	}
}

// rememberReplacedPrune remembers the last prune where another one takes its place.
func (s *step) rememberReplacedPrune(next types.UID) {
	if p := s.status.Prune; p != nil && p.UID != next {
		s.rememberPrune(p.UID)
	}
}

func (s *step) rememberPrune(uid types.UID) {
	if slices.Contains(s.status.EndedPrunes, uid) {
		return
	}
	s.status.EndedPrunes = slices.Insert(s.status.EndedPrunes, 0, uid)
	s.status.EndedPrunes = s.status.EndedPrunes[:min(len(s.status.EndedPrunes), v1alpha1.MaxEndedPrunes)]
}
