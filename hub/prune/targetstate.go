package prune

import (
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TargetState returns how far one of the view's targets is. Clusters drop the results of
// an ImagePrune that has ended: then its status says what it can.
func TargetState(v PruneView, t Target) v1alpha1.PruneStatus {
	i, found := slices.BinarySearchFunc(v.Targets, t, compareTargets)
	if !found {
		return v1alpha1.PruneStatus{UID: v.Prune.UID, State: v1alpha1.PruneUnknown, Message: "not a target of this ImagePrune"}
	}
	first, _ := slices.BinarySearchFunc(v.Targets, t.Cluster, func(t Target, cluster string) int { return strings.Compare(t.Cluster, cluster) })
	return v.targetState(&v.Targets[i], i-first)
}

const (
	tooManyMessage = "its cluster has more targets than fit into one plan, and this one stays. Select the rest with spec.images, or wait for the end of this ImagePrune, " +
		"then review a new PruneReport and create an ImagePrune for it"
	forgottenMessage = "this ImagePrune has ended, and the cluster no longer reports this target: see the counts in its status"
)

// targetState returns the state of a target, given its index among those of its cluster.
func (v *PruneView) targetState(t *Target, index int) v1alpha1.PruneStatus {
	newState := func(state v1alpha1.PruneState, reason, message string) v1alpha1.PruneStatus {
		return v1alpha1.PruneStatus{UID: v.Prune.UID, State: state, Reason: reason, Message: message}
	}
	st := &v.Prune.Status
	member, exists := v.Members[t.Cluster]
	isSameCluster := exists && t.ClusterUID != "" && member.ClusterUID == t.ClusterUID
	reported, found := v1alpha1.PruneStatus{}, false
	if isSameCluster {
		// Invariant: while two agents report in turns, no image is taken for deleted. The agent of a cluster that
		// never had it says so too, also of an undo.
		if reported, found = v.Reported(*t); reported.State == v1alpha1.PrunePruned && member.OfflineReason == v1alpha1.ReasonTwoAgents {
			reported, found = v1alpha1.PruneStatus{}, false
		}
	}
	isLate := st.Phase == v1alpha1.ImagePruneRunning && st.StartedAt != nil && !v.Now.Before(pruneDeadline(st, &v.Prune.Spec))
	switch {
	case index >= v1alpha1.MaxPlannedPrunes:
		return newState(v1alpha1.PruneSkipped, v1alpha1.PruneTooMany, tooManyMessage)
	case st.Phase == v1alpha1.ImagePruneComplete, st.Phase == v1alpha1.ImagePruneUndone:
		return v.rememberedState(t, reported, found)
	case !isSameCluster:
		return newState(v1alpha1.PruneUnknown, v1alpha1.PruneClusterGone, "no MemberCluster of that name is the cluster of the report: nothing is requested")
	case found && isFinal(reported.State):
		return reported
	case st.Phase.IsFinal():
		return newState(v1alpha1.PruneUnknown, "", forgottenMessage)
	case isLate:
		return newState(v1alpha1.PruneUnknown, v1alpha1.PruneDeadline, deadlineMessage(reported, member))
	case found && reported.State == v1alpha1.PrunePending:
		return reported
	}
	switch held := v.heldBy(t); {
	case st.Phase != v1alpha1.ImagePruneRunning:
		return newState(v1alpha1.PruneWaiting, "", "nothing is requested from its cluster yet")
	case held != "" && v.Prune.Spec.Undo:
		return newState(v1alpha1.PruneUndone, v1alpha1.PruneUndoAsked, "undone before its cluster was asked")
	case held == v1alpha1.PruneAnotherPrune:
		return newState(v1alpha1.PruneWaiting, held, "an older ImagePrune has the same image: this one waits for its end")
	case held != "":
		return newState(v1alpha1.PruneWaiting, held, "the plan of its cluster has no room until other ImagePrunes end")
	case member.OfflineReason == v1alpha1.ReasonTwoAgents: // what has begun goes on in both
		return newState(v1alpha1.PruneWaiting, "", "waiting for its cluster: "+member.offlineText()+", and until that has ended the hub cannot tell what is deleted there (see its MemberCluster)")
	case member.OfflineReason != "":
		return newState(v1alpha1.PruneWaiting, "", "waiting for its cluster: "+member.offlineText()+", and continues when that has ended (see its MemberCluster)")
	case reported.State == v1alpha1.PruneWaiting && reported.Message != "":
		return newState(v1alpha1.PruneWaiting, "", reported.Message)
	default:
		return newState(v1alpha1.PruneWaiting, "", "its cluster has not reported a state yet")
	}
}

// isFinal reports whether an agent ends with a state.
func isFinal(state v1alpha1.PruneState) bool {
	return state.IsFinal() && slices.Contains(v1alpha1.PruneStates(), state)
}

// rememberedState returns the final state of a target of an ended ImagePrune: as the
// status lists it, as its cluster still reports it, or the only one left by the counts.
func (v *PruneView) rememberedState(t *Target, reported v1alpha1.PruneStatus, found bool) v1alpha1.PruneStatus {
	st := &v.Prune.Status
	listed := slices.IndexFunc(st.Skipped, func(s v1alpha1.TargetSummary) bool {
		return s.Cluster == t.Cluster && s.Namespace == t.Namespace && s.Name == t.Name
	})
	images := 0 // listed ones; clusters are listed without an image
	for i := range st.Skipped {
		if st.Skipped[i].Name != "" {
			images++
		}
	}
	allListed := images == int(st.Targets.Skipped+st.Targets.Unknown)
	state := v1alpha1.PruneStatus{UID: v.Prune.UID}
	switch {
	case listed >= 0:
		s := &st.Skipped[listed]
		state.State, state.Reason, state.Message = s.State, s.Reason, s.Message
	case found && isFinal(reported.State):
		return reported
	case allListed && st.Targets.Undone == 0:
		state.State = v1alpha1.PrunePruned
	case allListed && st.Targets.Pruned == 0:
		state.State = v1alpha1.PruneUndone
	default:
		state.State, state.Message = v1alpha1.PruneUnknown, forgottenMessage
	}
	return state
}

func (v *PruneView) heldBy(t *Target) string {
	if v.HeldReason == nil {
		return ""
	}
	return v.HeldReason(*t)
}

// deadlineMessage says what is known of a target without an outcome. reported is the zero value where its
// cluster reports nothing of it. A status stores maxSummaryLength of it: agents' messages leave room for the rest.
func deadlineMessage(reported v1alpha1.PruneStatus, member Member) string {
	text := "its cluster reported no outcome within spec.undoWindow and spec.deadline"
	switch {
	case reported.State == v1alpha1.PrunePending:
		return text + "; its last report says that the image waits there for the end of its undo window"
	case member.OfflineReason == v1alpha1.ReasonTwoAgents:
		return text + "; " + member.offlineText() + ", so the hub cannot tell what is deleted there"
	case member.OfflineReason != "":
		return text + "; " + member.offlineText() + ": it deletes only what it had already accepted, or what its plan still names when that has ended"
	case reported.State == v1alpha1.PruneWaiting && reported.Message != "":
		return text + "; its last report says: " + reported.Message
	default:
		return text + ": check that its plan is acknowledged (see its MemberCluster)"
	}
}
