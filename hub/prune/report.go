package prune

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// reportEvaluation works out the status of a PruneReport.
type reportEvaluation struct {
	report *v1alpha1.PruneReport
	now    time.Time
	status v1alpha1.PruneReportStatus
}

// isFinished tells that the report does not change any more.
func (s *reportEvaluation) isFinished() bool {
	return s.status.Phase == v1alpha1.PruneReportComplete || s.status.Phase == v1alpha1.PruneReportFailed
}

// setPhase writes phase and conditions, all of them on every visit. Messages hold
// nothing that changes with time alone: each change is a write.
func (s *reportEvaluation) setPhase(phase v1alpha1.PruneReportPhase, reason, format string, args ...any) {
	s.status.ObservedGeneration = s.report.Generation
	s.status.Phase, s.status.Reason, s.status.Message = phase, reason, formatStatus(format, args...)
	invalid := reason == v1alpha1.ReasonScheduleInvalid
	s.setCondition(v1alpha1.ConditionReady, phase == v1alpha1.PruneReportComplete || phase == v1alpha1.PruneReportScheduled && !invalid)
	s.setCondition(v1alpha1.ConditionReconciling, phase == v1alpha1.PruneReportCollecting)
	s.setCondition(v1alpha1.ConditionStalled, phase == v1alpha1.PruneReportFailed || invalid)
	s.setCondition(v1alpha1.ConditionComplete, phase == v1alpha1.PruneReportComplete)
	s.setCondition(v1alpha1.ConditionFinished, s.isFinished())
}

func (s *reportEvaluation) setCondition(t string, holds bool) {
	setCondition(&s.status.Conditions, t, holds, s.status.Reason, s.status.Message, s.report.Generation, s.now)
}

func setCondition(conditions *[]metav1.Condition, t string, holds bool, reason, message string, generation int64, now time.Time) {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: t, Status: status, Reason: reason, Message: message,
		ObservedGeneration: generation, LastTransitionTime: *toStoredTime(now),
	})
}

// Bounds of what a status says.
const (
	maxStatusLength = 2048
	maxListedNames  = 5
)

func formatStatus(format string, args ...any) string {
	return truncateText(fmt.Sprintf(format, args...), maxStatusLength)
}

// summaryMessage says what a report has found, and what to do about it.
func (s *reportEvaluation) summaryMessage() string {
	var b strings.Builder
	c, total := &s.status.Candidates, &s.status.Clusters
	if c.Count == 0 {
		b.WriteString("no image could go")
	} else {
		fmt.Fprintf(&b, "%s of %s could go", pluralize(int(c.Count), "image", "images"), formatBytes(c.Bytes))
	}
	fmt.Fprintf(&b, ", by what %d of %s say", total.Answered, pluralize(int(total.Total), "cluster", "clusters"))
	if n := s.status.Others.Count; n > 0 {
		fmt.Fprintf(&b, "; of these no plan has made %d (%s): they go only with spec.includeOthers", n, formatBytes(s.status.Others.Bytes))
	}
	kept := int32(0)
	for i := range s.status.Kept {
		kept += s.status.Kept[i].Count
	}
	if kept > 0 {
		fmt.Fprintf(&b, "; %d are kept", kept)
	}
	if s.status.Orphans.Count > 0 {
		fmt.Fprintf(&b, "; %s of storage belong to no image", pluralize(int(s.status.Orphans.Count), "object", "objects"))
	}
	if total.Unknown > 0 {
		names := make([]string, len(s.status.UnknownClusters))
		for i := range names {
			names[i] = s.status.UnknownClusters[i].Cluster + ": " + s.status.UnknownClusters[i].Reason
		}
		fmt.Fprintf(&b, ". Nothing is said of %s (%s): make another PruneReport when they answer", pluralize(int(total.Unknown), "cluster", "clusters"), joinFirstOf(names, int(total.Unknown)))
	}
	if c.Count > 0 {
		fmt.Fprintf(&b, ". To have them deleted, review the pages and create an ImagePrune with reportRef {name: %s, digest: %s}", s.report.Name, s.status.Digest)
	}
	return b.String()
}

// joinFirst names the first of a list.
func joinFirst(names []string) string { return joinFirstOf(names, len(names)) }

// joinFirstOf does so where there are more than are listed.
func joinFirstOf(names []string, all int) string {
	named := names[:min(len(names), maxListedNames)]
	joined := strings.Join(named, ", ")
	if more := all - len(named); more > 0 {
		joined += fmt.Sprintf(" and %d more", more)
	}
	return joined
}

// formatBytes of so many bytes for people.
func formatBytes(bytes int64) string {
	units := []string{"KiB", "MiB", "GiB", "TiB", "PiB"}
	if bytes < 1<<10 {
		return fmt.Sprintf("%d B", bytes)
	}
	value, unit := float64(bytes), ""
	for _, unit = range units {
		if value /= 1 << 10; value < 1<<10 {
			break
		}
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0") + " " + unit
}

// sortNewestFirst orders reports of one schedule.
func sortNewestFirst(reports []v1alpha1.PruneReport) []*v1alpha1.PruneReport {
	list := make([]*v1alpha1.PruneReport, len(reports))
	for i := range reports {
		list[i] = &reports[i]
	}
	slices.SortFunc(list, func(a, b *v1alpha1.PruneReport) int {
		if c := b.CreationTimestamp.Compare(a.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(b.Name, a.Name)
	})
	return list
}
