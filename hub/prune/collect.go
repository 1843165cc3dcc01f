package prune

import (
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// AnswerState is how a cluster stands that a PruneReport asks: Unknown and Message as
// Answer returns them.
type AnswerState struct {
	Cluster, Unknown, Message string
	Offline                   bool
}

// ReportView is all that a decision about a PruneReport rests on that is made once.
type ReportView struct {
	Now time.Time
	// Report as it is stored: what is not, has asked nobody.
	Report *v1alpha1.PruneReport
	// Clusters are those that are placed.
	Clusters []AnswerState
	// Invalid is what is wrong with spec.placement; empty: nothing.
	Invalid string
}

// ReportDecision is what is to be done about it.
type ReportDecision struct {
	Status v1alpha1.PruneReportStatus
	// Collect: the clusters are to be judged as they stand now, the pages written, and
	// then the status that Complete returns. It comes once startedAt is stored only.
	Collect bool
	// RequeueAfter is when to look again although nothing happened; 0 for never.
	RequeueAfter time.Duration
}

// DecideReport decides whether a report is begun, waits, or is made. One that is complete
// or has failed stays as it is.
func DecideReport(v ReportView) ReportDecision {
	s := reportEvaluation{report: v.Report, now: v.Now, status: *v.Report.Status.DeepCopy()}
	if s.isFinished() {
		return ReportDecision{Status: s.status}
	}
	clusters := sortedAnswers(v.Clusters)
	s.status.Clusters = v1alpha1.AnswerCounts{Total: int32(len(clusters))}
	s.status.UnknownClusters = nil
	waited := []string{}
	for _, c := range clusters {
		if c.Unknown == "" {
			s.status.Clusters.Answered++
			continue
		}
		s.addUnknown(c.Cluster, c.Unknown, c.Message)
		if !c.Offline {
			waited = append(waited, c.Cluster)
		}
	}
	begun := s.status.StartedAt != nil
	switch {
	case v.Invalid != "":
		s.setPhase(v1alpha1.PruneReportFailed, v1alpha1.ReasonSelectorInvalid, "%s. Make another PruneReport in which it is mended", strings.Join(strings.Fields(v.Invalid), " "))
		return ReportDecision{Status: s.status}
	case len(clusters) == 0:
		s.setPhase(v1alpha1.PruneReportFailed, v1alpha1.ReasonNoClusters, "no MemberCluster is asked: spec.placement selects none, or the fleet has none. Label the MemberClusters, or make another PruneReport")
		return ReportDecision{Status: s.status}
	case !begun:
		s.status.StartedAt = toStoredTime(v.Now)
	}
	end := answerDeadline(&s.status, &v.Report.Spec)
	decision := ReportDecision{}
	switch {
	case begun && (len(waited) == 0 || !v.Now.Before(end)):
		decision.Collect = true
	default:
		decision.RequeueAfter = max(end.Sub(v.Now), time.Millisecond)
	}
	s.setPhase(v1alpha1.PruneReportCollecting, v1alpha1.ReasonAwaitingAnswers, "%s", s.waitingMessage(waited, end))
	decision.Status = s.status
	return decision
}

// waitingMessage says for whom and until when.
func (s *reportEvaluation) waitingMessage(waited []string, end time.Time) string {
	all := pluralize(int(s.status.Clusters.Total), "cluster", "clusters")
	if len(waited) == 0 {
		return s.progressMessage("of " + all + " none is waited for any more")
	}
	return s.progressMessage("of " + all + " these are waited for until " + end.UTC().Format(time.RFC3339) + ": " + joinFirst(waited))
}

func (s *reportEvaluation) progressMessage(text string) string {
	return text + "; " + pluralize(int(s.status.Clusters.Answered), "has", "have") + " answered"
}

// AnswerDeadline is until when clusters are waited for by a report that has begun.
func AnswerDeadline(report *v1alpha1.PruneReport) time.Time {
	return answerDeadline(&report.Status, &report.Spec)
}

func answerDeadline(st *v1alpha1.PruneReportStatus, spec *v1alpha1.PruneReportSpec) time.Time {
	if spec.AnswerDeadline != nil {
		return st.StartedAt.Add(spec.AnswerDeadline.Duration)
	}
	d, err := time.ParseDuration(v1alpha1.DefaultAnswerDeadline)
	if err != nil {
		panic(err) // a constant of our own
	}
	return st.StartedAt.Add(d)
}

func sortedAnswers(list []AnswerState) []AnswerState {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b AnswerState) int { return strings.Compare(a.Cluster, b.Cluster) })
	return list
}

// CompleteStatus is the status of a report whose pages are written. clusters are all that
// were placed, those that have not answered included.
func CompleteStatus(report *v1alpha1.PruneReport, clusters []v1alpha1.ReportedCluster, pages int, digest string, now time.Time) v1alpha1.PruneReportStatus {
	s := reportEvaluation{report: report, now: now, status: *report.Status.DeepCopy()}
	if s.isFinished() {
		return s.status
	}
	s.addTotals(clusters)
	s.status.Pages, s.status.Digest, s.status.CompletedAt = int32(pages), digest, toStoredTime(now)
	s.setPhase(v1alpha1.PruneReportComplete, v1alpha1.ReasonReported, "%s", s.summaryMessage())
	return s.status
}

// TooLargeStatus is the status of a report for which Paginate returns ErrTooLarge.
func TooLargeStatus(report *v1alpha1.PruneReport, now time.Time) v1alpha1.PruneReportStatus {
	s := reportEvaluation{report: report, now: now, status: *report.Status.DeepCopy()}
	if s.isFinished() {
		return s.status
	}
	s.setPhase(v1alpha1.PruneReportFailed, v1alpha1.ReasonReportTooLarge,
		"it has more rows than there may be pages for, which are %d: make several PruneReports, each with a part of the clusters (spec.placement) or of the images (spec.imageSelector)", v1alpha1.MaxPruneReportPages)
	return s.status
}

// addTotals adds up what is said of all clusters.
func (s *reportEvaluation) addTotals(clusters []v1alpha1.ReportedCluster) {
	clusters = slices.Clone(clusters)
	slices.SortStableFunc(clusters, func(a, b v1alpha1.ReportedCluster) int { return strings.Compare(a.Cluster, b.Cluster) })
	s.status.Clusters, s.status.UnknownClusters = v1alpha1.AnswerCounts{}, nil
	s.status.Candidates, s.status.Others, s.status.Undeclared, s.status.Orphans = v1alpha1.PruneTotal{}, v1alpha1.PruneTotal{}, v1alpha1.PruneTotal{}, v1alpha1.PruneTotal{}
	kept := map[v1alpha1.KeptReason]*v1alpha1.PruneTotal{}
	for i := range clusters {
		c := &clusters[i]
		if i == 0 || clusters[i-1].Cluster != c.Cluster { // a cluster may stand in parts
			s.status.Clusters.Total++
			if c.Unknown == "" {
				s.status.Clusters.Answered++
			} else {
				s.addUnknown(c.Cluster, c.Unknown, c.Message)
			}
		}
		for k := range c.Candidates {
			s.countCandidate(&c.Candidates[k])
		}
		for k := range c.Kept {
			g := &c.Kept[k]
			if kept[g.Reason] == nil {
				kept[g.Reason] = &v1alpha1.PruneTotal{}
			}
			kept[g.Reason].Count += int32(len(g.Images))
			kept[g.Reason].Bytes += g.Bytes
		}
		s.status.Orphans.Count += int32(len(c.Orphans)) + c.OmittedOrphans
		s.status.Orphans.Bytes += orphanBytes(c.Orphans) + c.OmittedOrphanBytes
	}
	s.status.Kept = nil
	for _, reason := range v1alpha1.KeptReasons() {
		if total := kept[reason]; total != nil {
			s.status.Kept = append(s.status.Kept, v1alpha1.KeptTotal{Reason: reason, PruneTotal: *total})
		}
	}
}

func (s *reportEvaluation) countCandidate(c *v1alpha1.PruneCandidate) {
	count := func(t *v1alpha1.PruneTotal) {
		t.Count++
		t.Bytes += c.Bytes
	}
	count(&s.status.Candidates)
	switch {
	case c.Origin != v1alpha1.OriginPlan:
		count(&s.status.Others)
	case c.DeclaredBy == "":
		count(&s.status.Undeclared)
	}
}

// addUnknown counts a cluster of which nothing is said, and names it where there is
// room.
func (s *reportEvaluation) addUnknown(cluster, reason, message string) {
	s.status.Clusters.Unknown++
	if len(s.status.UnknownClusters) < v1alpha1.MaxUnknownClusters {
		s.status.UnknownClusters = append(s.status.UnknownClusters, v1alpha1.UnknownCluster{
			Cluster: cluster, Reason: truncateText(reason, maxReasonLength), Message: truncateText(message, maxMessageLength),
		})
	}
}
