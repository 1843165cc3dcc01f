package prune

import (
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Standing is how a cluster stands that a PruneReport asks: Unknown and Message as
// Answer returns them.
type Standing struct {
	Cluster, Unknown, Message string
	Offline                   bool
}

// CollectView is all that a decision about a PruneReport rests on that is made once.
type CollectView struct {
	Now time.Time
	// Report as it is stored: what is not, has asked nobody.
	Report *v1alpha1.PruneReport
	// Clusters are those that are placed.
	Clusters []Standing
	// Invalid is what is wrong with spec.placement; empty: nothing.
	Invalid string
}

// CollectDecision is what is to be done about it.
type CollectDecision struct {
	Status v1alpha1.PruneReportStatus
	// Collect: the clusters are to be judged as they stand now, the pages written, and
	// then the status that Complete returns. It comes once startedAt is stored only.
	Collect bool
	// After is when to look again although nothing happened; 0 for never.
	After time.Duration
}

// Collect decides whether a report is begun, waits, or is made. One that is complete
// or has failed stays as it is.
func Collect(v CollectView) CollectDecision {
	s := reportStep{report: v.Report, now: v.Now, st: *v.Report.Status.DeepCopy()}
	if s.ended() {
		return CollectDecision{Status: s.st}
	}
	clusters := sortedStandings(v.Clusters)
	s.st.Clusters = v1alpha1.AnswerCounts{Total: int32(len(clusters))}
	s.st.UnknownClusters = nil
	waited := []string{}
	for _, c := range clusters {
		if c.Unknown == "" {
			s.st.Clusters.Answered++
			continue
		}
		s.unknown(c.Cluster, c.Unknown, c.Message)
		if !c.Offline {
			waited = append(waited, c.Cluster)
		}
	}
	begun := s.st.StartedAt != nil
	switch {
	case v.Invalid != "":
		s.tell(v1alpha1.PruneReportFailed, v1alpha1.ReasonSelectorInvalid, "%s. Make another PruneReport in which it is mended", strings.Join(strings.Fields(v.Invalid), " "))
		return CollectDecision{Status: s.st}
	case len(clusters) == 0:
		s.tell(v1alpha1.PruneReportFailed, v1alpha1.ReasonNoClusters, "no MemberCluster is asked: spec.placement selects none, or the fleet has none. Label the MemberClusters, or make another PruneReport")
		return CollectDecision{Status: s.st}
	case !begun:
		s.st.StartedAt = stamp(v.Now)
	}
	end := answersUntil(&s.st, &v.Report.Spec)
	decision := CollectDecision{}
	switch {
	case begun && (len(waited) == 0 || !v.Now.Before(end)):
		decision.Collect = true
	default:
		decision.After = max(end.Sub(v.Now), time.Millisecond)
	}
	s.tell(v1alpha1.PruneReportCollecting, v1alpha1.ReasonAwaitingAnswers, "%s", s.waiting(waited, end))
	decision.Status = s.st
	return decision
}

// waiting says for whom and until when.
func (s *reportStep) waiting(waited []string, end time.Time) string {
	all := counted(int(s.st.Clusters.Total), "cluster", "clusters")
	if len(waited) == 0 {
		return s.progress("of " + all + " none is waited for any more")
	}
	return s.progress("of " + all + " these are waited for until " + end.UTC().Format(time.RFC3339) + ": " + few(waited))
}

func (s *reportStep) progress(text string) string {
	return text + "; " + counted(int(s.st.Clusters.Answered), "has", "have") + " answered"
}

// AnswersUntil is until when clusters are waited for by a report that has begun.
func AnswersUntil(report *v1alpha1.PruneReport) time.Time {
	return answersUntil(&report.Status, &report.Spec)
}

func answersUntil(st *v1alpha1.PruneReportStatus, spec *v1alpha1.PruneReportSpec) time.Time {
	if spec.AnswerDeadline != nil {
		return st.StartedAt.Add(spec.AnswerDeadline.Duration)
	}
	d, err := time.ParseDuration(v1alpha1.DefaultAnswerDeadline)
	if err != nil {
		panic(err) // a constant of our own
	}
	return st.StartedAt.Add(d)
}

func sortedStandings(list []Standing) []Standing {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Standing) int { return strings.Compare(a.Cluster, b.Cluster) })
	return list
}

// Complete is the status of a report whose pages are written. clusters are all that
// were placed, those that have not answered included.
func Complete(report *v1alpha1.PruneReport, clusters []v1alpha1.ReportedCluster, pages int, digest string, now time.Time) v1alpha1.PruneReportStatus {
	s := reportStep{report: report, now: now, st: *report.Status.DeepCopy()}
	if s.ended() {
		return s.st
	}
	s.add(clusters)
	s.st.Pages, s.st.Digest, s.st.CompletedAt = int32(pages), digest, stamp(now)
	s.tell(v1alpha1.PruneReportComplete, v1alpha1.ReasonReported, "%s", s.summary())
	return s.st
}

// TooLarge is the status of a report for which Paginate returns ErrTooLarge.
func TooLarge(report *v1alpha1.PruneReport, now time.Time) v1alpha1.PruneReportStatus {
	s := reportStep{report: report, now: now, st: *report.Status.DeepCopy()}
	if s.ended() {
		return s.st
	}
	s.tell(v1alpha1.PruneReportFailed, v1alpha1.ReasonReportTooLarge,
		"it has more rows than there may be pages for, which are %d: make several PruneReports, each with a part of the clusters (spec.placement) or of the images (spec.imageSelector)", v1alpha1.MaxPruneReportPages)
	return s.st
}

// add adds up what is said of all clusters.
func (s *reportStep) add(clusters []v1alpha1.ReportedCluster) {
	clusters = slices.Clone(clusters)
	slices.SortStableFunc(clusters, func(a, b v1alpha1.ReportedCluster) int { return strings.Compare(a.Cluster, b.Cluster) })
	s.st.Clusters, s.st.UnknownClusters = v1alpha1.AnswerCounts{}, nil
	s.st.Candidates, s.st.Others, s.st.Undeclared, s.st.Orphans = v1alpha1.PruneTotal{}, v1alpha1.PruneTotal{}, v1alpha1.PruneTotal{}, v1alpha1.PruneTotal{}
	kept := map[v1alpha1.KeptReason]*v1alpha1.PruneTotal{}
	for i := range clusters {
		c := &clusters[i]
		if i == 0 || clusters[i-1].Cluster != c.Cluster { // a cluster may stand in parts
			s.st.Clusters.Total++
			if c.Unknown == "" {
				s.st.Clusters.Answered++
			} else {
				s.unknown(c.Cluster, c.Unknown, c.Message)
			}
		}
		for k := range c.Candidates {
			s.candidate(&c.Candidates[k])
		}
		for k := range c.Kept {
			g := &c.Kept[k]
			if kept[g.Reason] == nil {
				kept[g.Reason] = &v1alpha1.PruneTotal{}
			}
			kept[g.Reason].Count += int32(len(g.Images))
			kept[g.Reason].Bytes += g.Bytes
		}
		s.st.Orphans.Count += int32(len(c.Orphans)) + c.OmittedOrphans
		s.st.Orphans.Bytes += bytesOf(c.Orphans) + c.OmittedOrphanBytes
	}
	s.st.Kept = nil
	for _, reason := range v1alpha1.KeptReasons() {
		if total := kept[reason]; total != nil {
			s.st.Kept = append(s.st.Kept, v1alpha1.KeptTotal{Reason: reason, PruneTotal: *total})
		}
	}
}

func (s *reportStep) candidate(c *v1alpha1.PruneCandidate) {
	count := func(t *v1alpha1.PruneTotal) {
		t.Count++
		t.Bytes += c.Bytes
	}
	count(&s.st.Candidates)
	switch {
	case c.Origin != v1alpha1.OriginPlan:
		count(&s.st.Others)
	case c.DeclaredBy == "":
		count(&s.st.Undeclared)
	}
}

// unknown counts a cluster of which nothing is said, and names it where there is
// room.
func (s *reportStep) unknown(cluster, reason, message string) {
	s.st.Clusters.Unknown++
	if len(s.st.UnknownClusters) < v1alpha1.MaxUnknownClusters {
		s.st.UnknownClusters = append(s.st.UnknownClusters, v1alpha1.UnknownCluster{
			Cluster: cluster, Reason: text(reason, mostReason), Message: text(message, mostMessage),
		})
	}
}
