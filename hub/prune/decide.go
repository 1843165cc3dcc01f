package prune

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Member is the MemberCluster with the name of a target's cluster.
type Member struct {
	ClusterUID types.UID
	// OfflineReason is a condition's reason, as of rollout.Availability; empty: the member is online.
	OfflineReason string
	// IsSilent: its agent is not known to report. While it has two agents, OfflineReason does not say so.
	IsSilent bool
}

// PruneView is everything that a decision about an ImagePrune depends on.
type PruneView struct {
	Now time.Time
	// Prune as stored: plans hold only what is stored.
	Prune *v1alpha1.ImagePrune
	// Report that it names, read live; nil for none.
	Report *v1alpha1.PruneReport
	// TargetsLoaded: the pages were read live. Targets, AbsentClusters, Exclusions and
	// ChangedReason are about those pages.
	TargetsLoaded bool
	// Targets and AbsentClusters are the results of SelectTargets and AbsentClusters.
	Targets        []Target
	AbsentClusters []string
	// Exclusions are the result of SelectExclusions.
	Exclusions Exclusions
	// ChangedReason is why the pages are not those that were reviewed; empty: they are.
	ChangedReason string
	// ApprovalGuarded is the condition as it is now. It is needed while the status has no
	// phase.
	ApprovalGuarded metav1.Condition
	// Members of the targets' clusters, by name; a missing one is gone.
	Members map[string]Member
	// Reported returns what a target's cluster reports of this prune and this image UID.
	Reported func(Target) (v1alpha1.PruneStatus, bool)
	// HeldReason returns why the plan of a target's cluster lacks it, AnotherPrune or
	// PlanFull; empty where the plan has it, or gets it.
	HeldReason func(Target) string
}

// PruneDecision is what to do about an ImagePrune.
type PruneDecision struct {
	Status v1alpha1.ImagePruneStatus
	// LoadPages: read the pages, then decide again.
	LoadPages bool
	// RequeueAfter is when to decide again without an event; 0 for never.
	RequeueAfter time.Duration
}

// Decide returns how far an ImagePrune is. A final status is never left. An ImagePrune has
// started once Running is stored with startedAt: only then do plans hold its targets, see
// PlannedPrunes. The state of a target comes from reports alone.
func Decide(v PruneView) PruneDecision {
	e := pruneEvaluation{PruneView: v, status: *v.Prune.Status.DeepCopy()}
	switch {
	case v.Prune.Status.Phase.IsFinal():
		e.updateObservedGeneration()
	case !e.isRunning() && (v.Prune.Spec.Undo || v.Prune.DeletionTimestamp != nil):
		e.finish(v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, "undone before any cluster was asked")
	case e.checkReport():
		e.evaluateTargets()
	}
	e.decision.Status = e.status
	return e.decision
}

// pruneEvaluation builds one PruneDecision.
type pruneEvaluation struct {
	PruneView
	status   v1alpha1.ImagePruneStatus
	decision PruneDecision
}

func (e *pruneEvaluation) isRunning() bool {
	return e.Prune.Status.Phase == v1alpha1.ImagePruneRunning
}

// checkReport reports whether the report is the reviewed one and its pages are loaded.
// Otherwise it sets the status.
func (e *pruneEvaluation) checkReport() bool {
	ref, report := &e.Prune.Spec.ReportRef, e.Report
	switch {
	case report == nil || report.DeletionTimestamp != nil:
		e.fail(v1alpha1.ReasonReportMissing, "there is no PruneReport %s. Create and review another report, and create an ImagePrune for it", ref.Name)
	case report.Spec.Schedule != "":
		e.fail(v1alpha1.ReasonReportMissing, "PruneReport %s is a schedule: create an ImagePrune for one of its reports, such as status.lastReport", ref.Name)
	case report.Status.Phase == v1alpha1.PruneReportFailed:
		e.fail(v1alpha1.ReasonReportMissing, "PruneReport %s failed (%s): create and review another report, and create an ImagePrune for it", ref.Name, report.Status.Reason)
	case report.Status.Phase != v1alpha1.PruneReportComplete && e.isRunning():
		e.fail(v1alpha1.ReasonReportChanged, "PruneReport %s is no longer complete: it is not the report that was reviewed", ref.Name)
	case report.Status.Phase != v1alpha1.PruneReportComplete:
		e.setPhase(v1alpha1.ImagePrunePending, v1alpha1.ReasonReportIncomplete, "waiting for PruneReport %s to complete; no cluster is asked yet", ref.Name)
	case report.Status.Digest != ref.Digest:
		e.fail(v1alpha1.ReasonReportChanged, "PruneReport %s has digest %s, but %s was reviewed: review it, and create an ImagePrune with its digest", ref.Name, report.Status.Digest, ref.Digest)
	case !e.TargetsLoaded:
		e.decision.LoadPages = true
		if !e.isRunning() {
			e.setPhase(v1alpha1.ImagePrunePending, v1alpha1.ReasonReportIncomplete, "reading the pages of PruneReport %s", ref.Name)
		}
	case e.ChangedReason != "":
		e.fail(v1alpha1.ReasonReportChanged, "the pages of PruneReport %s are not those that were reviewed (%s). Create and review another report, and create an ImagePrune for it", ref.Name, e.ChangedReason)
	case len(e.Targets) == 0:
		e.status.Targets, e.status.Skipped = v1alpha1.TargetCounts{}, nil
		e.addExclusions()
		e.fail(v1alpha1.ReasonNothingSelected, "spec.clusters and spec.images select none of the %d candidates of PruneReport %s%s%s%s. Create an ImagePrune that selects some", report.Status.Candidates.Count, ref.Name, e.othersMessage(), e.absentMessage(), e.skippedMessage())
	default:
		return true
	}
	return false
}

// othersMessage counts the candidates that spec.includeOthers would add.
func (e *pruneEvaluation) othersMessage() string {
	n := e.Report.Status.Others.Count
	if n == 0 || e.Prune.Spec.IncludeOthers {
		return ""
	}
	return fmt.Sprintf("; %d of them were not created by a plan and need spec.includeOthers", n)
}

// fail ends an ImagePrune. Clusters that are connected undo what they have not deleted.
func (e *pruneEvaluation) fail(reason, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if e.isRunning() {
		message += ". Images that were not deleted yet stay" + e.offlineMessage()
	}
	e.finish(v1alpha1.ImagePruneFailed, reason, "%s", message)
}

func (e *pruneEvaluation) finish(phase v1alpha1.ImagePrunePhase, reason, format string, args ...any) {
	e.status.FinishedAt = ptr.To(storedtime.Truncate(e.Now))
	e.setPhase(phase, reason, format, args...)
}

// evaluateTargets starts an ImagePrune, counts its targets, and ends it once none waits.
func (e *pruneEvaluation) evaluateTargets() {
	e.status.Phase = v1alpha1.ImagePruneRunning
	if !e.isRunning() {
		e.status.StartedAt = nil
	}
	e.status.StartedAt = storedtime.Since(storedtime.Truncate(e.Now), e.status.StartedAt)
	deadline := pruneDeadline(&e.status, &e.Prune.Spec)
	waiting := e.countTargets()
	counts := &e.status.Targets
	switch {
	case counts.Waiting+counts.Pending > 0:
		e.decision.RequeueAfter = max(deadline.Sub(e.Now), time.Millisecond)
		reason := v1alpha1.ReasonUndoWindow
		if counts.Waiting > 0 || e.Prune.Spec.Undo {
			reason = v1alpha1.ReasonAwaitingMembers
		}
		e.setPhase(v1alpha1.ImagePruneRunning, reason, "%s", e.progressMessage(waiting, deadline))
	case e.Prune.Spec.Undo:
		e.finish(v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, "%s", e.outcomeMessage())
	case counts.Skipped+counts.Unknown+counts.Undone > 0, len(e.AbsentClusters) > 0:
		e.finish(v1alpha1.ImagePruneComplete, v1alpha1.ReasonPartlyPruned, "%s", e.outcomeMessage())
	default:
		e.finish(v1alpha1.ImagePruneComplete, v1alpha1.ReasonPruned, "%s", e.outcomeMessage())
	}
}

// pruneDeadline is until when an ImagePrune waits for its clusters.
func pruneDeadline(status *v1alpha1.ImagePruneStatus, spec *v1alpha1.ImagePruneSpec) time.Time {
	return status.StartedAt.Add(spec.TotalDuration())
}

// waitingClusters are the clusters with waiting targets, by name.
type waitingClusters struct {
	online  []string
	offline []string // with why
	held    bool     // a target is held back by another ImagePrune, or by a full plan
}

func (w *waitingClusters) addCluster(cluster string, held bool, member Member) {
	list := &w.online
	switch {
	case held:
		w.held = true
		return
	case member.OfflineReason != "":
		list = &w.offline
		cluster += " (" + member.offlineText() + ")"
	}
	if n := len(*list); n == 0 || (*list)[n-1] != cluster {
		*list = append(*list, cluster)
	}
}

// countTargets writes the states of the targets into the status.
func (e *pruneEvaluation) countTargets() waitingClusters {
	st := &e.status
	st.Clusters, st.Targets, st.Bytes, st.PrunedBytes, st.Skipped, st.PendingUntil = 0, v1alpha1.TargetCounts{}, 0, 0, nil, nil
	view := e.PruneView
	prune := *e.Prune // with the decided status: startedAt may be new
	prune.Status = *st
	view.Prune = &prune
	var waiting waitingClusters
	first := 0 // index of the first target of the cluster
	for i := range e.Targets {
		t := &e.Targets[i]
		if i == 0 || e.Targets[i-1].Cluster != t.Cluster {
			first = i
			st.Clusters++
		}
		state := view.targetState(t, i-first)
		st.Targets.Total++
		*st.Targets.CountOf(state.State)++
		st.Bytes += t.Bytes
		switch state.State {
		case v1alpha1.PrunePruned:
			st.PrunedBytes += t.Bytes
		case v1alpha1.PrunePending:
			if state.Until != nil && (st.PendingUntil == nil || state.Until.After(st.PendingUntil.Time)) {
				st.PendingUntil = toStoredTimeOrNil(state.Until)
			}
		case v1alpha1.PruneWaiting:
			waiting.addCluster(t.Cluster, state.Reason != "", e.Members[t.Cluster])
		case v1alpha1.PruneSkipped, v1alpha1.PruneUnknown:
			if len(st.Skipped) < v1alpha1.MaxSkippedTargets {
				st.Skipped = append(st.Skipped, v1alpha1.TargetSummary{
					Cluster: t.Cluster, Namespace: t.Namespace, Name: t.Name,
					State: state.State, Reason: v1alpha1.SanitizeText(state.Reason, maxReasonLength), Message: v1alpha1.SanitizeText(state.Message, maxSummaryLength),
				})
			}
		}
	}
	e.addExclusions()
	return waiting
}

// addExclusions lists and counts as skipped what spec.images names and is not pruned. Then it
// lists the clusters in spec.clusters that the report does not cover, without a count: their
// images are unknown.
func (e *pruneEvaluation) addExclusions() {
	st := &e.status
	st.Targets.Total += int32(e.Exclusions.Count)
	st.Targets.Skipped += int32(e.Exclusions.Count)
	free := v1alpha1.MaxSkippedTargets - len(st.Skipped)
	st.Skipped = append(st.Skipped, e.Exclusions.First[:min(free, len(e.Exclusions.First))]...)
	for _, cluster := range e.AbsentClusters {
		if len(st.Skipped) == v1alpha1.MaxSkippedTargets {
			return
		}
		st.Skipped = append(st.Skipped, v1alpha1.TargetSummary{
			Cluster: v1alpha1.SanitizeText(cluster, maxReasonLength), State: v1alpha1.PruneSkipped, Reason: v1alpha1.PruneNotReported, Message: "the report does not cover this cluster: nothing is pruned there",
		})
	}
}
