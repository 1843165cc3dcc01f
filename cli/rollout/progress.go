// Package rollout decides what the verbs about rollouts say and do: progress, waiting, approvals,
// pauses, and the way back to a version.
package rollout

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/approval"
	"github.com/pelotech/ot-fleet/api/numbers"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
)

// Progress is how far the rollout of a FleetDiskImage is.
type Progress struct {
	render.Envelope
	Name    string `json:"name"`
	Version string `json:"version"`
	// Observed: the status is about the spec as it is. What follows, but for Paused, is left out where
	// it is about the spec before.
	Observed   bool                      `json:"observed"`
	Phase      v1alpha1.RolloutPhase     `json:"phase,omitempty"`
	Reason     string                    `json:"reason,omitempty"`
	Message    string                    `json:"message,omitempty"`
	Stalled    bool                      `json:"stalled,omitempty"`
	Clusters   *v1alpha1.ClusterCounts   `json:"clusters,omitempty"`
	Waves      []Wave                    `json:"waves,omitzero"`
	Failing    []v1alpha1.ClusterSummary `json:"failing,omitempty"`
	Blocked    []v1alpha1.ClusterSummary `json:"blocked,omitempty"`
	ExpectedAt *metav1.Time              `json:"expectedAt,omitempty"`
	Paused     *Pause                    `json:"paused,omitempty"`
	// Command that goes on, where a person is waited for.
	Command string `json:"command,omitempty"`

	now time.Time
}

// Wave is a part of the fleet.
type Wave struct {
	Name            string                 `json:"name"`
	Clusters        v1alpha1.ClusterCounts `json:"clusters"`
	DoneAt          *metav1.Time           `json:"doneAt,omitempty"`
	RequireApproval bool                   `json:"requireApproval,omitempty"`
	ApprovedBy      string                 `json:"approvedBy,omitempty"`
}

// Pause says who paused a rollout, where kubectl ot did.
type Pause struct {
	By      string `json:"by,omitempty"`
	Because string `json:"because,omitempty"`
}

// Unobserved is the state of a rollout whose spec the hub has not processed. The version may be one that it has:
// a pause, an approval or a retry changes the spec, too.
const Unobserved = "unprocessed"

// IsObserved reports whether the status is about the spec as it is.
func IsObserved(img *v1alpha1.FleetDiskImage) bool {
	return img.Status.ObservedGeneration == img.Generation && img.Status.Phase != ""
}

// NewProgress reads a FleetDiskImage.
func NewProgress(img *v1alpha1.FleetDiskImage, now time.Time) *Progress {
	st := &img.Status
	p := &Progress{Envelope: render.NewEnvelope("RolloutProgress"), Name: img.Name, Version: img.Spec.Version, Observed: IsObserved(img), now: now}
	if img.Spec.Rollout.Paused {
		p.Paused = &Pause{By: img.Annotations[v1alpha1.AnnotationPausedBy], Because: img.Annotations[v1alpha1.AnnotationPausedBecause]}
	}
	if !p.Observed {
		return p
	}
	p.Phase, p.Reason, p.Message, p.Stalled = st.Phase, st.Reason, st.Message, meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionStalled)
	p.Clusters, p.Waves, p.Failing, p.Blocked, p.ExpectedAt, p.Command = &st.Clusters, []Wave{}, st.Failing, st.Blocked, st.ExpectedAt, NextCommand(img)
	for i := range st.Waves {
		w := Wave{Name: st.Waves[i].Name, Clusters: st.Waves[i].Clusters, DoneAt: st.Waves[i].DoneAt}
		w.RequireApproval = approval.IsRequired(img, w.Name)
		if a := approval.FindComplete(img, w.Name); a != nil {
			w.ApprovedBy = a.By
		}
		p.Waves = append(p.Waves, w)
	}
	return p
}

// Draw draws the screen.
func (p *Progress) Draw(page *render.Page) {
	page.Line(append(render.Line{render.Bold("%s %s", p.Name, p.Version), render.Text("  ")}, p.state()...)...)
	if !p.Observed {
		page.Lines(render.Waiting.With("the hub has not processed this spec yet"))
	}
	if p.Paused != nil && p.Paused.By != "" {
		page.Line(render.Text("paused by %s%s", p.Paused.By, because(p.Paused.Because)))
	}
	if len(p.Waves) > 0 {
		t := page.Table(render.Column{Title: "WAVE", Elastic: true, Min: 6}, render.Column{Title: "CLUSTERS", Right: true}, render.Column{Title: "READY", Right: true},
			render.Column{Title: "RUN", Right: true}, render.Column{Title: "FAILED", Right: true}, render.Column{Title: "OFFLINE", Right: true, Drop: 2},
			render.Column{Title: "NOT STARTED", Right: true, Drop: 3}, render.Column{Title: "", Elastic: true, Min: 10, Drop: 1})
		for _, w := range p.Waves {
			c := w.Clusters
			t.Row(append(render.Cells(w.Name, render.Number(c.Total), render.Number(c.Succeeded), render.Number(c.Progressing), render.Number(c.AllFailed()), render.Number(c.Deferred), render.Number(c.ToApply)), p.waveState(w))...)
		}
	}
	drawClusters(page, "FAILED", render.Failed, p.Failing)
	drawClusters(page, "WAIT FOR A PERSON", render.Attention, p.Blocked)
	if p.Message != "" && p.Phase != v1alpha1.RolloutSucceeded {
		page.Gap()
		page.Line(render.Text("%s", p.Message))
	}
	if p.ExpectedAt != nil {
		page.Line(render.Text("expected to be done at %s", render.Clock(p.now, p.ExpectedAt.Time)))
	}
	if p.Command != "" {
		page.Command(p.Command)
	}
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

func (p *Progress) waveState(w Wave) render.Line {
	switch {
	case w.DoneAt != nil:
		return render.Done.With("done for %s", render.Age(p.now, w.DoneAt.Time))
	case w.RequireApproval && w.ApprovedBy == "" && w.Clusters.ToApply > 0:
		return render.Attention.With("needs approval")
	case w.Clusters.Progressing > 0:
		return render.Running.With("begun")
	case w.ApprovedBy != "":
		return render.Waiting.With("approved by %s", w.ApprovedBy)
	default:
		return render.Waiting.With("to come")
	}
}

func drawClusters(page *render.Page, title string, sign render.Sign, clusters []v1alpha1.ClusterSummary) {
	if len(clusters) == 0 {
		return
	}
	page.Section(title)
	t := page.Table(render.Column{Title: "CLUSTER"}, render.Column{Title: "REASON"}, render.Column{Title: "MESSAGE", Elastic: true, Min: 10, Drop: 1})
	for _, c := range clusters {
		reason := c.Reason
		if reason == "" {
			reason = string(c.State)
		}
		t.Row(render.Words(c.Cluster), sign.With("%s", reason), render.Words(c.Message))
	}
}

func (p *Progress) state() render.Line {
	if p.Clusters == nil {
		return render.Waiting.With(Unobserved)
	}
	words := string(p.Phase)
	if p.Phase != v1alpha1.RolloutSucceeded {
		words += ", " + p.Reason
	}
	return append(SignOf(p.Phase, p.Reason, p.Stalled).With("%s", words), render.Text("  %d of %s", p.Clusters.Succeeded, render.Count(p.Clusters.Total, "cluster")))
}

// Summary is the line of a change, where no screen is drawn.
func (p *Progress) Summary() string {
	c, subject := p.Clusters, p.Name+" "+p.Version
	if c == nil {
		return subject + ": the hub has not processed it yet"
	}
	wave := ""
	for _, w := range p.Waves {
		if w.DoneAt == nil {
			wave = ", wave " + w.Name
			break
		}
	}
	text := numbers.Sprintf("%s: %s %s%s: %d of %s ready", subject, p.Phase, p.Reason, wave, c.Succeeded, render.Count(c.Total, "cluster"))
	for _, more := range []struct {
		n    int32
		word string
	}{{c.Progressing, "in progress"}, {c.AllFailed(), "failed"}, {c.Deferred, "offline"}} {
		if more.n > 0 {
			text += numbers.Sprintf(", %d %s", more.n, more.word)
		}
	}
	for _, f := range p.Failing {
		text += fmt.Sprintf("; %s %s", f.Cluster, strings.TrimSpace(f.Reason))
	}
	return text
}

// Names are for -o name.
func (p *Progress) Names() []string { return []string{render.Reference("FleetDiskImage", p.Name)} }
