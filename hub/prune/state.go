package prune

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxSummaryLength is how long a message of a TargetSummary is.
const maxSummaryLength = 256

// TargetState says how far one of the view's targets is. Of an ImagePrune that has ended,
// clusters forget: its status says what it was, as far as it does.
func TargetState(v PruneView, t Target) v1alpha1.PruneStatus {
	at, found := slices.BinarySearchFunc(v.Targets, t, compareTargets)
	if !found {
		return v1alpha1.PruneStatus{UID: v.Prune.UID, State: v1alpha1.PruneUnknown, Message: "it is no target of this ImagePrune"}
	}
	first, _ := slices.BinarySearchFunc(v.Targets, t.Cluster, func(t Target, cluster string) int { return strings.Compare(t.Cluster, cluster) })
	return v.targetState(&v.Targets[at], at-first)
}

// targetState says how far a target is that is at a place among those of its cluster.
func (v *PruneView) targetState(t *Target, place int) v1alpha1.PruneStatus {
	is := func(state v1alpha1.PruneState, reason, message string) v1alpha1.PruneStatus {
		return v1alpha1.PruneStatus{UID: v.Prune.UID, State: state, Reason: reason, Message: message}
	}
	st := &v.Prune.Status
	member, there := v.Members[t.Cluster]
	reported, told := v1alpha1.PruneStatus{}, false
	if there && t.ClusterUID != "" && member.ClusterUID == t.ClusterUID {
		reported, told = v.Reported(*t)
	}
	late := st.Phase == v1alpha1.ImagePruneRunning && st.StartedAt != nil && !v.Now.Before(pruneDeadline(st, &v.Prune.Spec))
	switch {
	case place >= v1alpha1.MaxPlannedPrunes:
		return is(v1alpha1.PruneSkipped, v1alpha1.PruneTooMany, "more images of its cluster are selected than fit into one plan: it stays; select the rest by spec.images, or make another PruneReport when this ImagePrune has ended and an ImagePrune of that: of the same report the same ones are taken")
	case st.Phase == v1alpha1.ImagePruneComplete, st.Phase == v1alpha1.ImagePruneUndone:
		return v.rememberedState(t, reported, told)
	case !there || t.ClusterUID == "" || member.ClusterUID != t.ClusterUID:
		return is(v1alpha1.PruneUnknown, v1alpha1.PruneClusterGone, "there is no MemberCluster of that name any more, or it is another cluster than that of the report: nothing is asked of it")
	case told && isFinal(reported.State):
		return reported
	case st.Phase.IsFinal():
		return is(v1alpha1.PruneUnknown, "", forgottenMessage)
	case late:
		return is(v1alpha1.PruneUnknown, v1alpha1.PruneDeadline, deadlineMessage(told, member.Offline))
	case told && reported.State == v1alpha1.PrunePending:
		return reported
	}
	switch held := v.heldBy(t); {
	case st.Phase != v1alpha1.ImagePruneRunning:
		return is(v1alpha1.PruneWaiting, "", "nothing is asked of its cluster yet")
	case held != "" && v.Prune.Spec.Undo:
		return is(v1alpha1.PruneUndone, v1alpha1.PruneUndoAsked, "it was undone before its cluster was asked")
	case held == v1alpha1.PruneAnotherPrune:
		return is(v1alpha1.PruneWaiting, held, "an older ImagePrune is at the same image: its turn comes when that one has ended")
	case held != "":
		return is(v1alpha1.PruneWaiting, held, "the plan of its cluster has no room for it until other ImagePrunes have ended")
	case member.Offline:
		return is(v1alpha1.PruneWaiting, "", "its cluster is offline, and takes it up when it is back")
	default:
		return is(v1alpha1.PruneWaiting, "", "its cluster has not taken it up yet")
	}
}

const forgottenMessage = "this ImagePrune has ended, and the cluster does not tell of it any more: see the counts of its status"

// isFinal tells that a state is one that an agent ends with.
func isFinal(state v1alpha1.PruneState) bool {
	return state.IsFinal() && slices.Contains(v1alpha1.PruneStates(), state)
}

// rememberedState is the state of a target when its ImagePrune ended: as the status lists
// it, as its cluster tells still, or the one that is left by the status's counts.
func (v *PruneView) rememberedState(t *Target, reported v1alpha1.PruneStatus, told bool) v1alpha1.PruneStatus {
	st := &v.Prune.Status
	listed := slices.IndexFunc(st.Skipped, func(s v1alpha1.TargetSummary) bool {
		return s.Cluster == t.Cluster && s.Namespace == t.Namespace && s.Name == t.Name
	})
	all := len(st.Skipped) == int(st.Targets.Skipped+st.Targets.Unknown)
	is := v1alpha1.PruneStatus{UID: v.Prune.UID}
	switch {
	case listed >= 0:
		s := &st.Skipped[listed]
		is.State, is.Reason, is.Message = s.State, s.Reason, s.Message
	case told && isFinal(reported.State):
		return reported
	case all && st.Targets.Undone == 0:
		is.State = v1alpha1.PrunePruned
	case all && st.Targets.Pruned == 0:
		is.State = v1alpha1.PruneUndone
	default:
		is.State, is.Message = v1alpha1.PruneUnknown, forgottenMessage
	}
	return is
}

func (v *PruneView) heldBy(t *Target) string {
	if v.HeldReason == nil {
		return ""
	}
	return v.HeldReason(*t)
}

func deadlineMessage(told, offline bool) string {
	text := "its cluster has not told what became of it until spec.undoWindow and spec.deadline had passed"
	switch {
	case told:
		return text + "; it said last that the image waits for the end of its undo window there, by its own clock"
	case offline:
		return text + "; it is offline, and deletes nothing but what it had taken up already"
	default:
		return text + ": is its plan acknowledged? See its MemberCluster"
	}
}

// updateObservedGeneration has an ended status say that it is about the spec as it is now.
func (s *pruneEvaluation) updateObservedGeneration() {
	s.status.ObservedGeneration = s.Prune.Generation
	for i := range s.status.Conditions {
		s.status.Conditions[i].ObservedGeneration = s.Prune.Generation
	}
}

// setPhase writes phase and conditions, all of them on every visit. Messages hold
// nothing that changes with time alone: each change is a write.
func (s *pruneEvaluation) setPhase(phase v1alpha1.ImagePrunePhase, reason, format string, args ...any) {
	s.status.ObservedGeneration = s.Prune.Generation
	s.status.Phase, s.status.Reason, s.status.Message = phase, reason, formatStatus(format, args...)
	c := &s.status.Targets
	done := phase == v1alpha1.ImagePruneComplete || phase == v1alpha1.ImagePruneUndone
	s.setCondition(v1alpha1.ConditionReady, done)
	s.setCondition(v1alpha1.ConditionReconciling, !phase.IsFinal())
	s.setCondition(v1alpha1.ConditionStalled, phase == v1alpha1.ImagePruneFailed)
	s.setCondition(v1alpha1.ConditionFinished, phase.IsFinal())
	s.setCondition(v1alpha1.ConditionSucceeded, done && c.Skipped+c.Unknown == 0 && (c.Undone == 0 && len(s.AbsentClusters) == 0 || phase == v1alpha1.ImagePruneUndone))
	s.setApprovalGuarded()
}

// setApprovalGuarded says whether the API server checked the approval. It does so when an ImagePrune
// is created: a policy that comes later, or goes, does not change what is said first.
func (s *pruneEvaluation) setApprovalGuarded() {
	if c := meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionApprovalGuarded); c != nil {
		c.ObservedGeneration = s.Prune.Generation
		return
	}
	if g := &s.ApprovalGuarded; g.Type != "" {
		setCondition(&s.status.Conditions, g.Type, g.Status == metav1.ConditionTrue, g.Reason, g.Message, s.Prune.Generation, s.Now)
	}
}

func (s *pruneEvaluation) setCondition(t string, holds bool) {
	setCondition(&s.status.Conditions, t, holds, s.status.Reason, s.status.Message, s.Prune.Generation, s.Now)
}

// progressMessage says what is waited for.
func (s *pruneEvaluation) progressMessage(w waitingClusters, end time.Time) string {
	c := &s.status.Targets
	var parts []string
	if s.Prune.Spec.Undo {
		parts = append(parts, "it is being undone")
	}
	if c.Waiting > 0 {
		text := pluralize(int(c.Waiting), "image waits", "images wait")
		var why []string
		if len(w.clusters) > 0 {
			why = append(why, "for "+joinFirst(w.clusters)+" to take it up")
		}
		if len(w.offline) > 0 {
			why = append(why, "for "+joinFirst(w.offline)+", offline")
		}
		if w.held {
			why = append(why, "for other ImagePrunes to end")
		}
		parts = append(parts, text+" "+strings.Join(why, ", "))
	}
	if c.Pending > 0 {
		text := pluralize(int(c.Pending), "image serves on until its undo window ends", "images serve on until their undo windows end")
		if until := s.status.PendingUntil; until != nil {
			text += ", the last at " + until.UTC().Format(time.RFC3339)
		}
		if !s.Prune.Spec.Undo {
			text += " (to keep what is left, set spec.undo)"
		}
		parts = append(parts, text)
	}
	return strings.Join(append(parts, s.outcomeCounts()...), "; ") + ". Clusters are waited for until " + end.UTC().Format(time.RFC3339) + s.absentMessage()
}

// outcomeMessage says what became of all.
func (s *pruneEvaluation) outcomeMessage() string {
	c := &s.status.Targets
	text := "of " + pluralize(int(c.Total), "image", "images") + " in " + pluralize(int(s.status.Clusters), "cluster", "clusters") + ": " + strings.Join(s.outcomeCounts(), "; ")
	if c.Skipped+c.Unknown > 0 {
		text += ". See status.skipped"
	}
	return text + s.absentMessage()
}

// absentMessage names clusters that people may take for pruned.
func (s *pruneEvaluation) absentMessage() string {
	if len(s.AbsentClusters) == 0 {
		return ""
	}
	return ". Of " + joinFirst(s.AbsentClusters) + " in spec.clusters PruneReport " + s.Prune.Spec.ReportRef.Name + " says nothing: nothing is asked there"
}

func (s *pruneEvaluation) outcomeCounts() (parts []string) {
	c := &s.status.Targets
	if c.Pruned > 0 {
		parts = append(parts, pluralize(int(c.Pruned), "is gone", "are gone")+" ("+formatBytes(s.status.PrunedBytes)+")")
	}
	if c.Skipped > 0 {
		parts = append(parts, pluralize(int(c.Skipped), "was skipped", "were skipped"))
	}
	if c.Undone > 0 {
		parts = append(parts, pluralize(int(c.Undone), "was undone and stays", "were undone and stay"))
	}
	if c.Unknown > 0 {
		parts = append(parts, pluralize(int(c.Unknown), "is unknown", "are unknown"))
	}
	return parts
}
