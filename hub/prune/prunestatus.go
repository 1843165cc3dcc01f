package prune

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/kstatus"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// updateObservedGeneration keeps a final status and marks the current spec as observed.
func (e *pruneEvaluation) updateObservedGeneration() {
	e.status.ObservedGeneration = e.Prune.Generation
	for i := range e.status.Conditions {
		e.status.Conditions[i].ObservedGeneration = e.Prune.Generation
	}
}

// setPhase writes phase and all conditions. Messages hold nothing that changes with time
// alone: each change costs a write.
func (e *pruneEvaluation) setPhase(phase v1alpha1.ImagePrunePhase, reason, format string, args ...any) {
	e.status.ObservedGeneration = e.Prune.Generation
	e.status.Phase, e.status.Reason, e.status.Message = phase, reason, formatStatus(format, args...)
	counts := &e.status.Targets
	done := phase == v1alpha1.ImagePruneComplete || phase == v1alpha1.ImagePruneUndone
	asRequested := phase == v1alpha1.ImagePruneUndone || counts.Undone == 0 && len(e.AbsentClusters) == 0
	c := kstatus.Writer{Conditions: &e.status.Conditions, Reason: e.status.Reason, Message: e.status.Message, Generation: e.Prune.Generation, Now: e.Now}
	c.SetReady(done, phase == v1alpha1.ImagePruneFailed)
	c.Set(v1alpha1.ConditionFinished, phase.IsFinal())
	c.Set(v1alpha1.ConditionSucceeded, done && counts.Skipped+counts.Unknown == 0 && asRequested)
	e.setApprovalGuarded()
}

// setApprovalGuarded records once whether the API server checked the approval: it does so
// when the ImagePrune is created, so later changes of the policy do not count.
func (e *pruneEvaluation) setApprovalGuarded() {
	if c := meta.FindStatusCondition(e.status.Conditions, v1alpha1.ConditionApprovalGuarded); c != nil {
		c.ObservedGeneration = e.Prune.Generation
		return
	}
	if c := &e.ApprovalGuarded; c.Type != "" {
		meta.SetStatusCondition(&e.status.Conditions, kstatus.NewCondition(c.Type, c.Status == metav1.ConditionTrue, c.Reason, v1alpha1.SanitizeText(c.Message, maxStatusLength), e.Prune.Generation, e.Now))
	}
}

// offlineText says why no plan reaches a member that is offline, or what the hub does not know of it.
func (m Member) offlineText() string {
	switch m.OfflineReason {
	case v1alpha1.ReasonQuarantined:
		return "it is in quarantine"
	case v1alpha1.ReasonTwoAgents:
		return "two agents report as it"
	case v1alpha1.ReasonAnotherCluster, v1alpha1.ReasonDuplicateCluster:
		return "its identity is not confirmed"
	default:
		return "it is offline"
	}
}

// isPlanCut reports whether no plan reaches a member. Two agents both get it, while they report.
func (m Member) isPlanCut() bool {
	return m.OfflineReason != "" && (m.OfflineReason != v1alpha1.ReasonTwoAgents || m.IsSilent)
}

// offlineMessage names the clusters that may delete images although nothing asks for it any more:
// no plan reaches them, and what they have accepted ends with their undo windows.
func (e *pruneEvaluation) offlineMessage() string {
	const text = ", but a cluster that no plan reaches, as while it is offline or in quarantine, deletes what it has accepted when its undo window ends, unless a VirtualMachine there names the image"
	if !e.TargetsLoaded {
		return text
	}
	var clusters []string
	for i := range e.Targets {
		t := &e.Targets[i]
		member := e.Members[t.Cluster]
		if n := len(clusters); n > 0 && clusters[n-1] == t.Cluster {
			continue
		}
		if !member.isPlanCut() || t.ClusterUID == "" || member.ClusterUID != t.ClusterUID || e.heldBy(t) != "" {
			continue
		}
		// What one of two agents ended with says nothing of the other.
		if reported, found := e.Reported(*t); !found || !isFinal(reported.State) || member.OfflineReason == v1alpha1.ReasonTwoAgents {
			clusters = append(clusters, t.Cluster)
		}
	}
	if len(clusters) == 0 {
		return ""
	}
	return text + ": " + joinFirst(clusters)
}

// progressMessage says what an ImagePrune waits for.
func (e *pruneEvaluation) progressMessage(waiting waitingClusters, deadline time.Time) string {
	counts := &e.status.Targets
	var parts []string
	if e.Prune.Spec.Undo {
		parts = append(parts, "undoing")
	}
	if counts.Waiting > 0 {
		var reasons []string
		if len(waiting.online) > 0 {
			reasons = append(reasons, "for "+joinFirst(waiting.online))
		}
		if len(waiting.offline) > 0 {
			reasons = append(reasons, "for "+joinFirst(waiting.offline))
		}
		if waiting.held {
			reasons = append(reasons, "for other ImagePrunes to end")
		}
		parts = append(parts, pluralize(int(counts.Waiting), "image waits", "images wait")+" "+strings.Join(reasons, ", "))
	}
	if counts.Pending > 0 {
		text := pluralize(int(counts.Pending), "image serves until its undo window ends", "images serve until their undo windows end")
		if until := e.status.PendingUntil; until != nil {
			text += ", the last at " + until.UTC().Format(time.RFC3339)
		}
		if !e.Prune.Spec.Undo {
			text += " (to keep what is left, set spec.undo)"
		}
		parts = append(parts, text)
	}
	return strings.Join(append(parts, e.outcomeCounts()...), "; ") + ". Deadline: " + deadline.UTC().Format(time.RFC3339) + e.absentMessage()
}

// outcomeMessage counts the outcomes of all targets.
func (e *pruneEvaluation) outcomeMessage() string {
	counts := &e.status.Targets
	text := pluralize(int(counts.Total), "image", "images") + " in " + pluralize(int(e.status.Clusters), "cluster", "clusters") + ": " + strings.Join(e.outcomeCounts(), "; ")
	return text + e.skippedMessage() + e.absentMessage()
}

func (e *pruneEvaluation) skippedMessage() string {
	if counts := &e.status.Targets; counts.Skipped+counts.Unknown > 0 {
		return ". See status.skipped"
	}
	return ""
}

// absentMessage names clusters of the spec in which nothing is pruned.
func (e *pruneEvaluation) absentMessage() string {
	if len(e.AbsentClusters) == 0 {
		return ""
	}
	return ". PruneReport " + e.Prune.Spec.ReportRef.Name + " does not cover " + joinFirst(e.AbsentClusters) + ", named in spec.clusters: nothing is pruned there"
}

func (e *pruneEvaluation) outcomeCounts() (parts []string) {
	counts := &e.status.Targets
	if counts.Pruned > 0 {
		parts = append(parts, pluralize(int(counts.Pruned), "is deleted", "are deleted")+" ("+formatBytes(e.status.PrunedBytes)+")")
	}
	if counts.Skipped > 0 {
		parts = append(parts, pluralize(int(counts.Skipped), "was skipped", "were skipped"))
	}
	if counts.Undone > 0 {
		parts = append(parts, pluralize(int(counts.Undone), "was undone and stays", "were undone and stay"))
	}
	if counts.Unknown > 0 {
		parts = append(parts, pluralize(int(counts.Unknown), "is unknown", "are unknown"))
	}
	return parts
}
