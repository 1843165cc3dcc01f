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

// reportStep works out the status of a PruneReport.
type reportStep struct {
	report *v1alpha1.PruneReport
	now    time.Time
	st     v1alpha1.PruneReportStatus
}

// ended tells that the report does not change any more.
func (s *reportStep) ended() bool {
	return s.st.Phase == v1alpha1.PruneReportComplete || s.st.Phase == v1alpha1.PruneReportFailed
}

// tell writes phase and conditions, all of them on every visit. Messages hold
// nothing that changes with time alone: each change is a write.
func (s *reportStep) tell(phase v1alpha1.PruneReportPhase, reason, format string, args ...any) {
	s.st.ObservedGeneration = s.report.Generation
	s.st.Phase, s.st.Reason, s.st.Message = phase, reason, statusText(format, args...)
	invalid := reason == v1alpha1.ReasonScheduleInvalid
	s.set(v1alpha1.ConditionReady, phase == v1alpha1.PruneReportComplete || phase == v1alpha1.PruneReportScheduled && !invalid)
	s.set(v1alpha1.ConditionReconciling, phase == v1alpha1.PruneReportCollecting)
	s.set(v1alpha1.ConditionStalled, phase == v1alpha1.PruneReportFailed || invalid)
	s.set(v1alpha1.ConditionComplete, phase == v1alpha1.PruneReportComplete)
	s.set(v1alpha1.ConditionFinished, s.ended())
}

func (s *reportStep) set(t string, holds bool) {
	setCondition(&s.st.Conditions, t, holds, s.st.Reason, s.st.Message, s.report.Generation, s.now)
}

func setCondition(conditions *[]metav1.Condition, t string, holds bool, reason, message string, generation int64, now time.Time) {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: t, Status: status, Reason: reason, Message: message,
		ObservedGeneration: generation, LastTransitionTime: *stamp(now),
	})
}

// Bounds of what a status says.
const (
	mostStatus = 2048
	mostNames  = 5
)

func statusText(format string, args ...any) string {
	return text(fmt.Sprintf(format, args...), mostStatus)
}

// summary says what a report has found, and what to do about it.
func (s *reportStep) summary() string {
	var b strings.Builder
	c, total := &s.st.Candidates, &s.st.Clusters
	if c.Count == 0 {
		b.WriteString("no image could go")
	} else {
		fmt.Fprintf(&b, "%s of %s could go", counted(int(c.Count), "image", "images"), size(c.Bytes))
	}
	fmt.Fprintf(&b, ", by what %d of %s say", total.Answered, counted(int(total.Total), "cluster", "clusters"))
	if n := s.st.Others.Count; n > 0 {
		fmt.Fprintf(&b, "; of these no plan has made %d (%s): they go only with spec.includeOthers", n, size(s.st.Others.Bytes))
	}
	kept := int32(0)
	for i := range s.st.Kept {
		kept += s.st.Kept[i].Count
	}
	if kept > 0 {
		fmt.Fprintf(&b, "; %d are kept", kept)
	}
	if s.st.Orphans.Count > 0 {
		fmt.Fprintf(&b, "; %s of storage belong to no image", counted(int(s.st.Orphans.Count), "object", "objects"))
	}
	if total.Unknown > 0 {
		names := make([]string, len(s.st.UnknownClusters))
		for i := range names {
			names[i] = s.st.UnknownClusters[i].Cluster + ": " + s.st.UnknownClusters[i].Reason
		}
		fmt.Fprintf(&b, ". Nothing is said of %s (%s): make another PruneReport when they answer", counted(int(total.Unknown), "cluster", "clusters"), fewOf(names, int(total.Unknown)))
	}
	if c.Count > 0 {
		fmt.Fprintf(&b, ". To have them deleted, review the pages and create an ImagePrune with reportRef {name: %s, digest: %s}", s.report.Name, s.st.Digest)
	}
	return b.String()
}

// few names the first of a list.
func few(names []string) string { return fewOf(names, len(names)) }

// fewOf does so where there are more than are listed.
func fewOf(names []string, all int) string {
	named := names[:min(len(names), mostNames)]
	joined := strings.Join(named, ", ")
	if more := all - len(named); more > 0 {
		joined += fmt.Sprintf(" and %d more", more)
	}
	return joined
}

// size of so many bytes for people.
func size(bytes int64) string {
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

// newestFirst orders reports of one schedule.
func newestFirst(reports []v1alpha1.PruneReport) []*v1alpha1.PruneReport {
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
