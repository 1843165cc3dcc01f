package prune

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Member is the MemberCluster of a target's name.
type Member struct {
	ClusterUID types.UID
	Offline    bool
}

// PruneView is all that a decision about an ImagePrune rests on.
type PruneView struct {
	Now time.Time
	// Prune as it is stored: what is not, no plan carries.
	Prune *v1alpha1.ImagePrune
	// Report that it names, read live; nil: there is none.
	Report *v1alpha1.PruneReport
	// Targets as the function Targets returns them, of the pages as they are read
	// live, once Loaded.
	Targets       []Target
	TargetsLoaded bool
	// AbsentClusters as the function Absent returns them, of the same pages.
	AbsentClusters []string
	// ApprovalGuarded is condition ApprovalGuarded as it is now, wanted while the status has no phase.
	ApprovalGuarded metav1.Condition
	// ChangedReason says why the pages are not as they were reviewed; empty: they are.
	ChangedReason string
	// Members of the targets' clusters, by name; one that is not there is gone.
	Members map[string]Member
	// Reported is what a target's cluster reports of this prune and this image UID.
	Reported func(Target) (v1alpha1.PruneStatus, bool)
	// HeldReason says why the plan of a target's cluster does not carry it, AnotherPrune or
	// PlanFull; empty: it does, or is to.
	HeldReason func(Target) (reason string)
}

// AbsentClusters are the clusters that an ImagePrune names and of which the report says
// nothing: they are not in it, or Unknown there.
func AbsentClusters(spec *v1alpha1.ImagePruneSpec, clusters []v1alpha1.ReportedCluster) []string {
	known := map[string]bool{}
	for i := range clusters {
		if clusters[i].Unknown == "" {
			known[clusters[i].Cluster] = true
		}
	}
	var absent []string
	for _, name := range spec.Clusters {
		if !known[name] {
			absent = append(absent, name)
		}
	}
	slices.Sort(absent)
	return slices.Compact(absent)
}

// PruneDecision is what is to be done about an ImagePrune.
type PruneDecision struct {
	Status v1alpha1.ImagePruneStatus
	// Load: the pages are to be read, and then is decided again.
	LoadPages bool
	// RequeueAfter is when to look again although nothing happened; 0 for never.
	RequeueAfter time.Duration
}

// Decide says how far an ImagePrune is. A status that has ended is never left. What
// has begun is what is stored as Running, with startedAt: only then do plans carry
// it, see Planned. The state of a target comes of reports alone, and is stored
// nowhere but there.
func Decide(v PruneView) PruneDecision {
	s := pruneEvaluation{PruneView: v, status: *v.Prune.Status.DeepCopy()}
	switch {
	case v.Prune.Status.Phase.IsFinal():
		s.updateObservedGeneration()
	case !s.isRunning() && (v.Prune.Spec.Undo || v.Prune.DeletionTimestamp != nil):
		s.finish(v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, "it was undone before anything was asked of a cluster")
	case !s.checkReport():
	case !s.isRunning():
		s.status.StartedAt = toStoredTime(v.Now)
		s.status.Phase = v1alpha1.ImagePruneRunning
		s.evaluateTargets()
	default:
		if s.status.StartedAt == nil {
			s.status.StartedAt = toStoredTime(v.Now)
		}
		s.evaluateTargets()
	}
	s.decision.Status = s.status
	return s.decision
}

// pruneEvaluation works out one decision.
type pruneEvaluation struct {
	PruneView
	status   v1alpha1.ImagePruneStatus
	decision PruneDecision
}

func (s *pruneEvaluation) isRunning() bool { return s.Prune.Status.Phase == v1alpha1.ImagePruneRunning }

// checkReport tells whether the report is as it was reviewed, and read. Where it is not,
// what is to be said of it is said.
func (s *pruneEvaluation) checkReport() bool {
	ref, report := &s.Prune.Spec.ReportRef, s.Report
	switch {
	case report == nil || report.DeletionTimestamp != nil:
		s.fail(v1alpha1.ReasonReportMissing, "there is no PruneReport %s, or not any more. Make another, review it, and make an ImagePrune that names it", ref.Name)
	case report.Spec.Schedule != "":
		s.fail(v1alpha1.ReasonReportMissing, "PruneReport %s makes reports and is none itself: make an ImagePrune that names one of those, the last is in its status.lastReport", ref.Name)
	case report.Status.Phase == v1alpha1.PruneReportFailed:
		s.fail(v1alpha1.ReasonReportMissing, "PruneReport %s has failed (%s): make another, review it, and make an ImagePrune that names it", ref.Name, report.Status.Reason)
	case report.Status.Phase != v1alpha1.PruneReportComplete && s.isRunning():
		s.fail(v1alpha1.ReasonReportChanged, "PruneReport %s is not complete any more: it is not what was reviewed", ref.Name)
	case report.Status.Phase != v1alpha1.PruneReportComplete:
		s.setPhase(v1alpha1.ImagePrunePending, v1alpha1.ReasonReportIncomplete, "PruneReport %s is not complete yet: nothing is asked of any cluster before", ref.Name)
	case report.Status.Digest != ref.Digest:
		s.fail(v1alpha1.ReasonReportChanged, "PruneReport %s has digest %s, and %s was reviewed: review it, and make an ImagePrune that names its digest", ref.Name, report.Status.Digest, ref.Digest)
	case !s.TargetsLoaded:
		s.decision.LoadPages = true
		if !s.isRunning() {
			s.setPhase(v1alpha1.ImagePrunePending, v1alpha1.ReasonReportIncomplete, "the pages of PruneReport %s are being read", ref.Name)
		}
	case s.ChangedReason != "":
		s.fail(v1alpha1.ReasonReportChanged, "the pages of PruneReport %s are not as they were reviewed (%s). Make another report, review it, and make an ImagePrune that names it", ref.Name, s.ChangedReason)
	case len(s.Targets) == 0:
		s.fail(v1alpha1.ReasonNothingSelected, "of the candidates of PruneReport %s, which are %d, none is selected by spec.clusters and spec.images%s%s. Make an ImagePrune that selects some", ref.Name, report.Status.Candidates.Count, s.othersMessage(), s.absentMessage())
	default:
		return true
	}
	return false
}

// othersMessage says that some are left out which people may have meant.
func (s *pruneEvaluation) othersMessage() string {
	n := s.Report.Status.Others.Count
	if n == 0 || s.Prune.Spec.IncludeOthers {
		return ""
	}
	return fmt.Sprintf("; no plan has made %d of them, which go only with spec.includeOthers", n)
}

// fail ends it: nothing more is asked of any cluster, and what has not been deleted
// is undone there.
func (s *pruneEvaluation) fail(reason, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if s.isRunning() {
		message += ". What was not deleted yet stays"
	}
	s.finish(v1alpha1.ImagePruneFailed, reason, "%s", message)
}

func (s *pruneEvaluation) finish(phase v1alpha1.ImagePrunePhase, reason, format string, args ...any) {
	s.status.FinishedAt = toStoredTime(s.Now)
	s.setPhase(phase, reason, format, args...)
}

// evaluateTargets counts the targets, and ends it where none is waited for.
func (s *pruneEvaluation) evaluateTargets() {
	end := pruneDeadline(&s.status, &s.Prune.Spec)
	seen := s.countTargets()
	c := &s.status.Targets
	switch {
	case c.Waiting+c.Pending > 0:
		s.decision.RequeueAfter = max(end.Sub(s.Now), time.Millisecond)
		reason := v1alpha1.ReasonUndoWindow
		if c.Waiting > 0 || s.Prune.Spec.Undo {
			reason = v1alpha1.ReasonAwaitingMembers
		}
		s.setPhase(v1alpha1.ImagePruneRunning, reason, "%s", s.progressMessage(seen, end))
	case s.Prune.Spec.Undo:
		s.finish(v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, "%s", s.outcomeMessage())
	case c.Skipped+c.Unknown+c.Undone > 0, len(s.AbsentClusters) > 0:
		s.finish(v1alpha1.ImagePruneComplete, v1alpha1.ReasonPartlyPruned, "%s", s.outcomeMessage())
	default:
		s.finish(v1alpha1.ImagePruneComplete, v1alpha1.ReasonPruned, "%s", s.outcomeMessage())
	}
}

// pruneDeadline is when clusters are not waited for any more.
func pruneDeadline(st *v1alpha1.ImagePruneStatus, spec *v1alpha1.ImagePruneSpec) time.Time {
	return st.StartedAt.Add(spec.TotalDuration())
}

// waitingClusters are the clusters that some target waits for, by name.
type waitingClusters struct {
	clusters []string // that have not told, but for those below
	offline  []string
	held     bool // by another ImagePrune, or for want of room
}

func (s *pruneEvaluation) countTargets() waitingClusters {
	st := &s.status
	st.Clusters, st.Targets, st.Bytes, st.PrunedBytes, st.Skipped, st.PendingUntil = 0, v1alpha1.TargetCounts{}, 0, 0, nil, nil
	view := s.PruneView
	prune := *s.Prune // with what is decided, as startedAt
	prune.Status = *st
	view.Prune = &prune
	var w waitingClusters
	first := 0 // of the cluster's targets
	for i := range s.Targets {
		t := &s.Targets[i]
		if i == 0 || s.Targets[i-1].Cluster != t.Cluster {
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
			w.addCluster(t.Cluster, state.Reason != "", s.Members[t.Cluster].Offline)
		case v1alpha1.PruneSkipped, v1alpha1.PruneUnknown:
			if len(st.Skipped) < v1alpha1.MaxSkippedTargets {
				st.Skipped = append(st.Skipped, v1alpha1.TargetSummary{
					Cluster: t.Cluster, Namespace: t.Namespace, Name: t.Name,
					State: state.State, Reason: truncateText(state.Reason, maxReasonLength), Message: truncateText(state.Message, maxSummaryLength),
				})
			}
		}
	}
	return w
}

func (w *waitingClusters) addCluster(cluster string, held, offline bool) {
	list := &w.clusters
	switch {
	case held:
		w.held = true
		return
	case offline:
		list = &w.offline
	}
	if n := len(*list); n == 0 || (*list)[n-1] != cluster {
		*list = append(*list, cluster)
	}
}
