package prune

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/kstatus"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// AnswerState is how far a cluster is with its answer to a PruneReport. Unknown and
// Message are the results of UnansweredReason.
type AnswerState struct {
	Cluster, Unknown, Message string
	Offline                   bool
}

// ReportView is everything that a decision about a PruneReport without a schedule depends
// on.
type ReportView struct {
	Now time.Time
	// Report as stored: before startedAt is stored, nobody was asked.
	Report *v1alpha1.PruneReport
	// Clusters are those that the placement selects.
	Clusters []AnswerState
	// Invalid is what is wrong with spec.placement; empty for nothing.
	Invalid string
}

// ReportDecision is what to do about a PruneReport.
type ReportDecision struct {
	Status v1alpha1.PruneReportStatus
	// Complete: judge the clusters as they are now, write the pages, and then the status
	// that CompleteStatus returns. It is set only once startedAt is stored.
	Complete bool
	// RequeueAfter is when to decide again without an event; 0 for never.
	RequeueAfter time.Duration
}

// DecideReport decides whether a report starts, waits for answers, or is completed. A
// finished report never changes.
func DecideReport(v ReportView) ReportDecision {
	e := newReportEvaluation(v.Report, v.Now)
	if IsFinished(&e.status) {
		return ReportDecision{Status: e.status}
	}
	awaited := e.countAnswers(v.Clusters)
	switch {
	case v.Invalid != "":
		e.setPhase(v1alpha1.PruneReportFailed, v1alpha1.ReasonSelectorInvalid, "%s. Create another PruneReport with a correct selector", strings.Join(strings.Fields(v.Invalid), " "))
		return ReportDecision{Status: e.status}
	case len(v.Clusters) == 0:
		e.setPhase(v1alpha1.PruneReportFailed, v1alpha1.ReasonNoClusters, "spec.placement selects no MemberCluster, or the fleet has none. Label the MemberClusters, or create another PruneReport")
		return ReportDecision{Status: e.status}
	}
	started := e.status.StartedAt != nil
	e.status.StartedAt = storedtime.Since(storedtime.Truncate(v.Now), e.status.StartedAt)
	deadline := answerDeadline(&e.status, &v.Report.Spec)
	decision := ReportDecision{}
	if started && (len(awaited) == 0 || !v.Now.Before(deadline)) {
		decision.Complete = true
	} else {
		decision.RequeueAfter = max(deadline.Sub(v.Now), time.Millisecond)
	}
	e.setPhase(v1alpha1.PruneReportCollecting, v1alpha1.ReasonAwaitingAnswers, "%s", e.waitingMessage(awaited, deadline))
	decision.Status = e.status
	return decision
}

// AnswerDeadline is until when a started report waits for answers.
func AnswerDeadline(report *v1alpha1.PruneReport) time.Time {
	return answerDeadline(&report.Status, &report.Spec)
}

func answerDeadline(status *v1alpha1.PruneReportStatus, spec *v1alpha1.PruneReportSpec) time.Time {
	if spec.AnswerDeadline != nil {
		return status.StartedAt.Add(spec.AnswerDeadline.Duration)
	}
	d, err := time.ParseDuration(v1alpha1.DefaultAnswerDeadline)
	if err != nil {
		panic(err) // a constant
	}
	return status.StartedAt.Add(d)
}

// CompleteStatus is the status of a report whose pages are written. clusters are all that
// the placement selects, with those that are unknown.
func CompleteStatus(report *v1alpha1.PruneReport, clusters []v1alpha1.ReportedCluster, pages int, digest string, now time.Time) v1alpha1.PruneReportStatus {
	e := newReportEvaluation(report, now)
	if IsFinished(&e.status) {
		return e.status
	}
	e.addTotals(clusters)
	e.status.Pages, e.status.Digest, e.status.CompletedAt = int32(pages), digest, ptr.To(storedtime.Truncate(now))
	e.setPhase(v1alpha1.PruneReportComplete, v1alpha1.ReasonReported, "%s", e.summaryMessage())
	return e.status
}

// TooLargeStatus is the status of a report for which Paginate returns ErrTooLarge.
func TooLargeStatus(report *v1alpha1.PruneReport, now time.Time) v1alpha1.PruneReportStatus {
	e := newReportEvaluation(report, now)
	if IsFinished(&e.status) {
		return e.status
	}
	e.setPhase(v1alpha1.PruneReportFailed, v1alpha1.ReasonReportTooLarge,
		"the report has more rows than fit on %d pages: create several PruneReports, each for a part of the clusters (spec.placement) or of the images (spec.imageSelector)", v1alpha1.MaxPruneReportPages)
	return e.status
}

// reportEvaluation builds the status of a PruneReport.
type reportEvaluation struct {
	report *v1alpha1.PruneReport
	now    time.Time
	status v1alpha1.PruneReportStatus
}

func newReportEvaluation(report *v1alpha1.PruneReport, now time.Time) reportEvaluation {
	return reportEvaluation{report: report, now: now, status: *report.Status.DeepCopy()}
}

// IsFinished reports whether a report has ended.
func IsFinished(status *v1alpha1.PruneReportStatus) bool {
	return status.Phase == v1alpha1.PruneReportComplete || status.Phase == v1alpha1.PruneReportFailed
}

// setPhase writes phase and all conditions. Messages hold nothing that changes with time
// alone: each change costs a write.
func (e *reportEvaluation) setPhase(phase v1alpha1.PruneReportPhase, reason, format string, args ...any) {
	e.status.ObservedGeneration = e.report.Generation
	e.status.Phase, e.status.Reason, e.status.Message = phase, reason, formatStatus(format, args...)
	invalid := reason == v1alpha1.ReasonScheduleInvalid
	ready := phase == v1alpha1.PruneReportComplete || phase == v1alpha1.PruneReportScheduled && !invalid
	c := kstatus.Writer{Conditions: &e.status.Conditions, Reason: e.status.Reason, Message: e.status.Message, Generation: e.report.Generation, Now: e.now}
	c.SetReady(ready, phase == v1alpha1.PruneReportFailed || invalid)
	c.Set(v1alpha1.ConditionComplete, phase == v1alpha1.PruneReportComplete)
	c.Set(v1alpha1.ConditionFinished, IsFinished(&e.status))
}

// countAnswers counts answered and unknown clusters, and returns those that are awaited:
// offline ones are not.
func (e *reportEvaluation) countAnswers(clusters []AnswerState) (awaited []string) {
	clusters = slices.Clone(clusters)
	slices.SortFunc(clusters, func(a, b AnswerState) int { return strings.Compare(a.Cluster, b.Cluster) })
	e.status.Clusters = v1alpha1.AnswerCounts{Total: int32(len(clusters))}
	e.status.UnknownClusters = nil
	for _, c := range clusters {
		if c.Unknown == "" {
			e.status.Clusters.Answered++
			continue
		}
		e.addUnknown(c.Cluster, c.Unknown, c.Message)
		if !c.Offline {
			awaited = append(awaited, c.Cluster)
		}
	}
	return awaited
}

// addUnknown counts an unknown cluster, and lists it where there is room.
func (e *reportEvaluation) addUnknown(cluster, reason, message string) {
	e.status.Clusters.Unknown++
	if len(e.status.UnknownClusters) < v1alpha1.MaxUnknownClusters {
		e.status.UnknownClusters = append(e.status.UnknownClusters, v1alpha1.UnknownCluster{
			Cluster: cluster, Reason: v1alpha1.SanitizeText(reason, maxReasonLength), Message: v1alpha1.SanitizeText(message, maxMessageLength),
		})
	}
}

// addTotals sums the judgements of all clusters.
func (e *reportEvaluation) addTotals(clusters []v1alpha1.ReportedCluster) {
	clusters = slices.Clone(clusters)
	slices.SortStableFunc(clusters, func(a, b v1alpha1.ReportedCluster) int { return strings.Compare(a.Cluster, b.Cluster) })
	st := &e.status
	st.Clusters, st.UnknownClusters = v1alpha1.AnswerCounts{}, nil
	st.Candidates, st.Others, st.Undeclared, st.Orphans = v1alpha1.PruneTotal{}, v1alpha1.PruneTotal{}, v1alpha1.PruneTotal{}, v1alpha1.PruneTotal{}
	kept := map[v1alpha1.KeptReason]*v1alpha1.PruneTotal{}
	for i := range clusters {
		c := &clusters[i]
		if i == 0 || clusters[i-1].Cluster != c.Cluster { // a cluster may be in several parts
			st.Clusters.Total++
			if c.Unknown == "" {
				st.Clusters.Answered++
			} else {
				e.addUnknown(c.Cluster, c.Unknown, c.Message)
			}
		}
		for k := range c.Candidates {
			e.countCandidate(&c.Candidates[k])
		}
		for k := range c.Kept {
			group := &c.Kept[k]
			if kept[group.Reason] == nil {
				kept[group.Reason] = &v1alpha1.PruneTotal{}
			}
			kept[group.Reason].Count += int32(len(group.Images))
			kept[group.Reason].Bytes += group.Bytes
		}
		st.Orphans.Count += int32(len(c.Orphans)) + c.OmittedOrphans
		st.Orphans.Bytes += orphanBytes(c.Orphans) + c.OmittedOrphanBytes
	}
	st.Kept = nil
	for _, reason := range v1alpha1.KeptReasons() {
		if total := kept[reason]; total != nil {
			st.Kept = append(st.Kept, v1alpha1.KeptTotal{Reason: reason, PruneTotal: *total})
		}
	}
}

func (e *reportEvaluation) countCandidate(c *v1alpha1.PruneCandidate) {
	add := func(t *v1alpha1.PruneTotal) {
		t.Count++
		t.Bytes += c.Bytes
	}
	add(&e.status.Candidates)
	switch {
	case c.Origin != v1alpha1.OriginPlan:
		add(&e.status.Others)
	case c.DeclaredBy == "":
		add(&e.status.Undeclared)
	}
}

// waitingMessage says how many clusters answered, and which are awaited until when.
func (e *reportEvaluation) waitingMessage(awaited []string, deadline time.Time) string {
	text := fmt.Sprintf("%d of %s answered", e.status.Clusters.Answered, pluralize(int(e.status.Clusters.Total), "cluster", "clusters"))
	if len(awaited) == 0 {
		return text + "; no answer is awaited"
	}
	return text + "; waiting until " + deadline.UTC().Format(time.RFC3339) + " for " + joinFirst(awaited)
}

// summaryMessage says what a report found and what to do next.
func (e *reportEvaluation) summaryMessage() string {
	var b strings.Builder
	candidates, clusters := &e.status.Candidates, &e.status.Clusters
	kept := int32(0)
	for i := range e.status.Kept {
		kept += e.status.Kept[i].Count
	}
	switch {
	case candidates.Count > 0:
		fmt.Fprintf(&b, "%s (%s) can be pruned", pluralize(int(candidates.Count), "image", "images"), formatBytes(candidates.Bytes))
	case kept == 0 && e.report.Spec.ImageSelector != nil && clusters.Answered > 0:
		b.WriteString("spec.imageSelector selects no image of the clusters that answered: check its namespaces and names, and create another PruneReport")
	default:
		b.WriteString("no image can be pruned")
	}
	fmt.Fprintf(&b, "; %d of %s answered", clusters.Answered, pluralize(int(clusters.Total), "cluster", "clusters"))
	if n := e.status.Others.Count; n > 0 {
		fmt.Fprintf(&b, "; %d of the images (%s) were not created by a plan and need spec.includeOthers", n, formatBytes(e.status.Others.Bytes))
	}
	if kept > 0 {
		fmt.Fprintf(&b, "; %d are kept", kept)
	}
	if e.status.Orphans.Count > 0 {
		fmt.Fprintf(&b, "; %s of storage belong to no image", pluralize(int(e.status.Orphans.Count), "object", "objects"))
	}
	if clusters.Unknown > 0 {
		names := make([]string, len(e.status.UnknownClusters))
		for i := range names {
			names[i] = e.status.UnknownClusters[i].Cluster + ": " + e.status.UnknownClusters[i].Reason
		}
		fmt.Fprintf(&b, ". Unknown: %s (%s); create another PruneReport when they answer", pluralize(int(clusters.Unknown), "cluster", "clusters"), v1alpha1.JoinFirst(names, maxListedNames, int(clusters.Unknown)))
	}
	if candidates.Count > 0 {
		fmt.Fprintf(&b, ". To delete the images, review the pages and create an ImagePrune with reportRef {name: %s, digest: %s}", e.report.Name, e.status.Digest)
	}
	return b.String()
}
