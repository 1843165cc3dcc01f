package prune

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/numbers"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
)

// Progress is the answer of kubectl ot prune status NAME: how far an ImagePrune is.
type Progress struct {
	render.Envelope
	ObservedAt metav1.Time `json:"observedAt"`
	Prune
	Skipped []v1alpha1.TargetSummary `json:"skipped,omitempty"`
	Command string                   `json:"command,omitempty"`

	now time.Time
}

// Prune is an ImagePrune.
type Prune struct {
	Name         string                   `json:"name"`
	Report       string                   `json:"report"`
	ApprovedBy   string                   `json:"approvedBy"`
	Phase        v1alpha1.ImagePrunePhase `json:"phase,omitempty"`
	Reason       string                   `json:"reason,omitempty"`
	Message      string                   `json:"message,omitempty"`
	Undo         bool                     `json:"undo,omitempty"`
	Clusters     int32                    `json:"clusters"`
	Images       v1alpha1.TargetCounts    `json:"images"`
	Bytes        int64                    `json:"bytes"`
	PrunedBytes  int64                    `json:"prunedBytes"`
	PendingUntil *metav1.Time             `json:"pendingUntil,omitempty"`
	FinishedAt   *metav1.Time             `json:"finishedAt,omitempty"`
	CreatedAt    metav1.Time              `json:"createdAt"`
}

func newPrune(p *v1alpha1.ImagePrune) Prune {
	st := &p.Status
	return Prune{
		Name: p.Name, Report: p.Spec.ReportRef.Name, ApprovedBy: p.Spec.ApprovedBy, Phase: st.Phase, Reason: st.Reason, Message: st.Message, Undo: p.Spec.Undo,
		Clusters: st.Clusters, Images: st.Targets, Bytes: st.Bytes, PrunedBytes: st.PrunedBytes, PendingUntil: st.PendingUntil, FinishedAt: st.FinishedAt,
		CreatedAt: p.CreationTimestamp,
	}
}

// NewProgress returns how far an ImagePrune is.
func NewProgress(now time.Time, p *v1alpha1.ImagePrune) *Progress {
	v := &Progress{Envelope: render.NewEnvelope("PruneProgress"), ObservedAt: metav1.NewTime(now), Prune: newPrune(p), Skipped: p.Status.Skipped, now: now}
	if !v.Phase.IsFinal() && !v.Undo {
		v.Command = shellword.FormatCommand("kubectl ot prune undo %s", v.Name)
	}
	return v
}

// ExitCode is No where the prune failed, or images that it names stayed against its will.
func (v *Progress) ExitCode() exit.Code {
	switch {
	case v.Phase == v1alpha1.ImagePruneFailed:
		return exit.No
	case v.Images.Unknown > 0 && v.Phase.IsFinal():
		return exit.Unknown
	default:
		return exit.Yes
	}
}

// CheckUndoable returns why an ImagePrune cannot be undone, in whole or at all.
func CheckUndoable(p *v1alpha1.ImagePrune) error {
	gone := p.Status.Targets.Pruned
	switch phase := p.Status.Phase; {
	case phase == v1alpha1.ImagePruneUndone || p.Spec.Undo:
		return nil
	case phase.IsFinal() && gone > 0:
		return fmt.Errorf("ImagePrune %s is over: %s of %d deleted, which nothing brings back but another download", p.Name, render.Count(gone, "image"), p.Status.Targets.Total)
	case phase.IsFinal():
		return fmt.Errorf("ImagePrune %s is over, and nothing was deleted", p.Name)
	}
	return nil
}

// Names is the ImagePrune.
func (v *Progress) Names() []string { return []string{render.Reference("ImagePrune", v.Name)} }

// Summary says in one line how far it is.
func (v *Progress) Summary() string {
	return numbers.Sprintf("ImagePrune %s: %s %s, %d of %s deleted, %d not started, %d pending, %d stay, %d taken back, %d unknown", v.Name, cmp.Or(string(v.Phase), "new"), v.Reason,
		v.Images.Pruned, render.Count(v.Images.Total, "image"), v.Images.Waiting, v.Images.Pending, v.Images.Skipped, v.Images.Undone, v.Images.Unknown)
}

func (p *Prune) state() render.Line {
	switch p.Phase {
	case v1alpha1.ImagePruneComplete:
		return render.Done.With("%s %s", p.Phase, p.Reason)
	case v1alpha1.ImagePruneUndone:
		return render.Done.With("%s", p.Phase)
	case v1alpha1.ImagePruneFailed:
		return render.Failed.With("%s %s", p.Phase, p.Reason)
	case "":
		return render.Waiting.With("new")
	case v1alpha1.ImagePrunePending:
		return render.Waiting.With("%s %s", p.Phase, p.Reason)
	default:
		return render.Running.With("%s %s", p.Phase, p.Reason)
	}
}

// Draw draws the screen.
func (v *Progress) Draw(p *render.Page) {
	line := append(render.Line{render.Bold("PRUNE %s", v.Name), render.Text(" of report %s · ", v.Report)}, v.state()...)
	p.Line(append(line, render.Text(" · approved by %s", v.ApprovedBy))...)
	if v.Message != "" {
		p.Line(render.Text("%s", v.Message))
	}
	share := 0.0
	if v.Images.Total > 0 {
		share = float64(v.Images.Pruned) / float64(v.Images.Total)
	}
	p.Line(render.Text("  %d of %s in %s  ", v.Images.Pruned, render.Count(v.Images.Total, "image"), render.Count(v.Clusters, "cluster")), render.Bar(share, 20),
		render.Text("  %s of %s", render.Bytes(v.PrunedBytes), render.Bytes(v.Bytes)))
	var counts []render.Line
	for _, c := range []struct {
		sign render.Sign
		n    int32
		word string
	}{
		{render.Waiting, v.Images.Waiting, "not started"},
		{render.Running, v.Images.Pending, "serve on for the undo window"},
		{render.Done, v.Images.Pruned, "gone"},
		{render.Attention, v.Images.Skipped, "stay"},
		{render.Done, v.Images.Undone, "taken back"},
		{render.Unknown, v.Images.Unknown, "unknown"},
	} {
		if c.n > 0 {
			counts = append(counts, c.sign.With("%d %s", c.n, c.word))
		}
	}
	if len(counts) > 0 {
		p.Line(append(render.Words("  "), render.Join(counts, "   ")...)...)
	}
	if v.Undo && !v.Phase.IsFinal() {
		p.Lines(render.Running.With("it is being taken back"))
	}
	if v.Command != "" {
		until := ""
		if v.PendingUntil != nil {
			until = fmt.Sprintf(", for some images until %s", render.Clock(v.now, v.PendingUntil.Time))
		}
		p.Line(render.Text("It can be taken back%s:", until))
		p.Command(v.Command)
	}
	if len(v.Skipped) > 0 {
		p.Gap()
		t := p.Table(render.Column{Title: "CLUSTER"}, render.Column{Title: "STAYS", Elastic: true, Min: 14}, render.Column{Title: "REASON"}, render.Column{Title: "MESSAGE", Elastic: true, Min: 10, Drop: 1})
		for _, s := range v.Skipped {
			t.Row(render.Cells(s.Cluster, strings.Trim(s.Namespace+"/"+s.Name, "/"), s.Reason, s.Message)...)
		}
	}
}

// Overview is the answer of kubectl ot prune status: all reports and prunes.
type Overview struct {
	render.Envelope
	ObservedAt metav1.Time     `json:"observedAt"`
	Reports    []ReportSummary `json:"reports"`
	Prunes     []Prune         `json:"prunes"`
	Command    string          `json:"command,omitempty"`

	now time.Time
}

// NewOverview returns all reports and prunes, the newest in front.
func NewOverview(now time.Time, reports []v1alpha1.PruneReport, prunes []v1alpha1.ImagePrune) *Overview {
	v := &Overview{Envelope: render.NewEnvelope("PruneOverview"), ObservedAt: metav1.NewTime(now), Reports: []ReportSummary{}, Prunes: []Prune{}, now: now}
	slices.SortFunc(reports, func(a, b v1alpha1.PruneReport) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	for i := range reports {
		v.Reports = append(v.Reports, newSummary(&reports[i]))
	}
	slices.SortFunc(prunes, func(a, b v1alpha1.ImagePrune) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	for i := range prunes {
		v.Prunes = append(v.Prunes, newPrune(&prunes[i]))
	}
	if len(reports) == 0 {
		v.Command = "kubectl ot prune report --unreferenced-for 168h"
	}
	return v
}

// Names are the reports and prunes.
func (v *Overview) Names() (names []string) {
	for i := range v.Reports {
		names = append(names, render.Reference("PruneReport", v.Reports[i].Report))
	}
	for i := range v.Prunes {
		names = append(names, render.Reference("ImagePrune", v.Prunes[i].Name))
	}
	return names
}

// Draw draws the screen.
func (v *Overview) Draw(p *render.Page) {
	if v.Command != "" {
		p.Line(render.Text("There is no report of what can go. Make one, which deletes nothing:"))
		p.Command(v.Command)
	} else {
		t := p.Table(render.Column{Title: "REPORT", Elastic: true, Min: 14}, render.Column{Title: "STATE", Elastic: true, Min: 10}, render.Column{Title: "ANSWERED", Right: true, Drop: 2},
			render.Column{Title: "CAN GO", Right: true}, render.Column{Title: "BYTES", Right: true}, render.Column{Title: "AGE", Right: true, Drop: 1}, render.Column{Title: "DIGEST", Drop: 3, Wide: true})
		for i := range v.Reports {
			r := &v.Reports[i]
			age := "-"
			if r.CompletedAt != nil {
				age = render.Age(v.now, r.CompletedAt.Time)
			}
			t.Row(render.Words(r.Report), r.state(), render.Words(numbers.Sprintf("%d/%d", r.Clusters.Answered, r.Clusters.Total)), render.Words(render.Number(r.Candidates.Count)),
				render.Words(render.Bytes(r.Candidates.Bytes)), render.Words(age), render.Words(r.Digest))
		}
	}
	if len(v.Prunes) == 0 {
		return
	}
	p.Gap()
	t := p.Table(render.Column{Title: "PRUNE", Elastic: true, Min: 14}, render.Column{Title: "STATE", Elastic: true, Min: 10}, render.Column{Title: "GONE", Right: true}, render.Column{Title: "STAY", Right: true, Drop: 1},
		render.Column{Title: "BYTES", Right: true}, render.Column{Title: "APPROVED BY", Drop: 2})
	for i := range v.Prunes {
		x := &v.Prunes[i]
		t.Row(render.Words(x.Name), x.state(), render.Words(numbers.Sprintf("%d/%d", x.Images.Pruned, x.Images.Total)), render.Words(render.Number(x.Images.Skipped)),
			render.Words(render.Bytes(x.PrunedBytes)), render.Words(x.ApprovedBy))
		if !x.Phase.IsFinal() && !x.Undo {
			t.Command(shellword.FormatCommand("kubectl ot prune undo %s", x.Name))
		}
	}
}

func (s *ReportSummary) state() render.Line {
	if s.hasFailed() {
		return render.Failed.With("%s", s.Reason)
	}
	switch s.Phase {
	case v1alpha1.PruneReportComplete:
		return render.Done.With("%s", s.Phase)
	case v1alpha1.PruneReportScheduled:
		return render.Waiting.With("%s", s.Schedule)
	case "":
		return render.Waiting.With("new")
	default:
		return render.Running.With("%s", s.Phase)
	}
}
