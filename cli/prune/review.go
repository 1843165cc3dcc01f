package prune

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/numbers"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
	hubprune "github.com/pelotech/ot-fleet/hub/prune"
)

// Review is the answer of kubectl ot prune review and report: what can go, and why the rest
// stays.
type Review struct {
	render.Envelope
	ObservedAt metav1.Time `json:"observedAt"`
	ReportSummary
	// By is what Groups are of; both are absent while the report is made.
	By     readapi.PruneBy      `json:"by,omitempty"`
	Groups []readapi.PruneGroup `json:"groups,omitempty"`
	// GroupsTotal counts the groups; Limit of them are on the screen, 0 for all.
	GroupsTotal int `json:"groupsTotal,omitempty"`
	Limit       int `json:"limit,omitempty"`
	// IncludeOthers: those made by people are among Groups.
	IncludeOthers bool `json:"includeOthers,omitempty"`
	// Selected is what --images and --clusters select; absent without them.
	Selected *v1alpha1.PruneTotal `json:"selected,omitempty"`
	// Pruned is the least that ImagePrunes of the report have deleted since, of all candidates; absent for none. Of
	// those that may select one image, only the largest counts.
	Pruned   *v1alpha1.PruneTotal `json:"pruned,omitempty"`
	Warnings []string             `json:"warnings,omitempty"`
	// Source is where the review was read, and what could not be.
	Source  string `json:"source,omitempty"`
	Command string `json:"command,omitempty"`

	now time.Time
}

// ReportSummary is what a PruneReport says of itself.
type ReportSummary struct {
	Report   string                    `json:"report"`
	Schedule string                    `json:"schedule,omitempty"`
	Phase    v1alpha1.PruneReportPhase `json:"phase,omitempty"`
	Reason   string                    `json:"reason,omitempty"`
	Message  string                    `json:"message,omitempty"`
	// Stalled: somebody has to correct something, as a schedule that is invalid.
	Stalled          bool                      `json:"stalled,omitempty"`
	Digest           string                    `json:"digest,omitempty"`
	CompletedAt      *metav1.Time              `json:"completedAt,omitempty"`
	NextScheduleTime *metav1.Time              `json:"nextScheduleTime,omitempty"`
	Clusters         v1alpha1.AnswerCounts     `json:"clusters"`
	UnknownClusters  []v1alpha1.UnknownCluster `json:"unknownClusters,omitempty"`
	Candidates       v1alpha1.PruneTotal       `json:"candidates"`
	Others           v1alpha1.PruneTotal       `json:"others"`
	Kept             []v1alpha1.KeptTotal      `json:"kept,omitempty"`
	Orphans          v1alpha1.PruneTotal       `json:"orphans"`
}

func newSummary(r *v1alpha1.PruneReport) ReportSummary {
	st := &r.Status
	return ReportSummary{
		Report: r.Name, Schedule: r.Spec.Schedule, Phase: st.Phase, Reason: st.Reason, Message: st.Message, Digest: st.Digest,
		Stalled:     meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionStalled),
		CompletedAt: st.CompletedAt, NextScheduleTime: st.NextScheduleTime, Clusters: st.Clusters, UnknownClusters: st.UnknownClusters,
		Candidates: st.Candidates, Others: st.Others, Kept: st.Kept, Orphans: st.Orphans,
	}
}

// NewReport returns what is said of a report that is made: how far it is, and its totals.
func NewReport(now time.Time, r *v1alpha1.PruneReport) *Review {
	v := &Review{Envelope: render.NewEnvelope("PruneReview"), ObservedAt: metav1.NewTime(now), ReportSummary: newSummary(r), now: now}
	switch {
	case r.Spec.Schedule != "" && r.Status.LastReport != "":
		v.Command = shellword.FormatCommand("kubectl ot prune review %s", r.Status.LastReport)
	case v.Phase == v1alpha1.PruneReportComplete && v.Candidates.Count > 0:
		v.Command = shellword.FormatCommand("kubectl ot prune review %s", r.Name)
	}
	return v
}

// NewReview returns the review of a complete report. s has all its parts.
func NewReview(now time.Time, r *v1alpha1.PruneReport, prunes []v1alpha1.ImagePrune, s *hubprune.Selection, limit int, source string) *Review {
	v := NewReport(now, r)
	if left := r.CandidatesLeft(prunes); left != r.Status.Candidates {
		v.Pruned = &v1alpha1.PruneTotal{Count: v.Candidates.Count - left.Count, Bytes: v.Candidates.Bytes - left.Bytes}
	}
	v.By, v.Groups, v.Limit, v.Source, v.Command, v.IncludeOthers = s.By(), s.Groups(), limit, source, "", s.Spec().IncludeOthers
	v.GroupsTotal = len(v.Groups)
	v.Warnings = s.Absences()
	total, leftOut := s.Total(), s.LeftOut()
	if len(s.Spec().Images)+len(s.Spec().Clusters) > 0 {
		v.Selected = &v1alpha1.PruneTotal{Count: int32(total.Images), Bytes: total.Bytes} //nolint:gosec // a report has fewer
	}
	switch {
	case total.Images > 0:
		v.Command = approveCommand(r.Name, r.Status.Digest, s.Spec())
	case leftOut.Count > 0:
		wider := *s.Spec()
		wider.IncludeOthers = true
		v.Command = ReviewCommand(r.Name, &wider)
		if v.By != readapi.PruneByImage {
			v.Command += shellword.FormatCommand(" --by %s", string(v.By))
		}
	}
	return v
}

// approveCommand is the command that approves exactly what was reviewed.
func approveCommand(report, digest string, spec *v1alpha1.ImagePruneSpec) string {
	return shellword.FormatCommand("kubectl ot prune approve %s --digest %s", report, digest) + selectionFlags(spec)
}

// ReviewCommand is the command that reviews what spec selects.
func ReviewCommand(report string, spec *v1alpha1.ImagePruneSpec) string {
	return shellword.FormatCommand("kubectl ot prune review %s", report) + selectionFlags(spec)
}

// selectionFlags are the flags of review and approve that select as spec does. Invariant: a command that follows
// from another selects no more, but for --include-others where that is its purpose.
func selectionFlags(spec *v1alpha1.ImagePruneSpec) (flags string) {
	for _, flag := range []struct {
		name   string
		values []string
	}{{"--images", spec.Images}, {"--clusters", spec.Clusters}} {
		if len(flag.values) > 0 {
			flags += " " + flag.name + " " + shellword.Quote(strings.Join(flag.values, ","))
		}
	}
	if spec.IncludeOthers {
		flags += " --include-others"
	}
	return flags
}

// ExitCode of a report: Unknown where clusters did not answer.
func (v *Review) ExitCode(allowUnknown bool) exit.Code {
	switch {
	case v.hasFailed():
		return exit.No
	case v.Phase == v1alpha1.PruneReportScheduled:
		return exit.Yes
	case v.Phase != v1alpha1.PruneReportComplete:
		return exit.NotYet
	case v.Clusters.Unknown > 0 && !allowUnknown:
		return exit.Unknown
	default:
		return exit.Yes
	}
}

// hasFailed reports whether no report comes of it before somebody corrects something.
func (s *ReportSummary) hasFailed() bool { return s.Phase == v1alpha1.PruneReportFailed || s.Stalled }

// ParseBy parses --by.
func ParseBy(text string) (readapi.PruneBy, error) {
	if by := readapi.PruneBy(text); slices.Contains(readapi.PruneBys(), by) {
		return by, nil
	}
	return "", fmt.Errorf("--by %s: must be image, cluster or age", text)
}

// Ended reports whether the report is made, or never will be.
func (v *Review) Ended() bool {
	return slices.Contains([]v1alpha1.PruneReportPhase{v1alpha1.PruneReportComplete, v1alpha1.PruneReportFailed, v1alpha1.PruneReportScheduled}, v.Phase)
}

// Names are the images, or clusters, that can go; of a report that was not read, its own.
func (v *Review) Names() []string {
	if v.By == "" {
		return []string{render.Reference("PruneReport", v.Report)}
	}
	names := make([]string, len(v.Groups))
	for i, g := range v.Groups {
		names[i] = string(v.By) + "/" + g.Name
	}
	return names
}

// Summary says in one line how far the report is.
func (v *Review) Summary() string {
	return numbers.Sprintf("PruneReport %s: %d of %s answered", v.Report, v.Clusters.Answered, render.Count(v.Clusters.Total, "cluster"))
}
