package why

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

// RolloutSnapshot is a FleetDiskImage, and whether the caller may approve it.
type RolloutSnapshot struct {
	Now   time.Time
	Image *v1alpha1.FleetDiskImage
	// MayApprove is whether the caller has VerbToGoOn; nil where that is not known.
	MayApprove *bool
}

// VerbToGoOn is the verb on FleetDiskImages that somebody needs for a rollout to go on.
func VerbToGoOn(img *v1alpha1.FleetDiskImage) string {
	if rollout.AwaitsApproval(img) {
		return "approve"
	}
	return "patch"
}

// Rollout is the answer of kubectl ot why rollout.
type Rollout struct {
	render.Envelope
	Name    string                `json:"name"`
	Version string                `json:"version"`
	Verdict Verdict               `json:"verdict"`
	Phase   v1alpha1.RolloutPhase `json:"phase,omitempty"`
	Reason  string                `json:"reason,omitempty"`
	Message string                `json:"message,omitempty"`
	// Clusters and Waves are absent while the status is about the spec before.
	Clusters   *v1alpha1.ClusterCounts   `json:"clusters,omitempty"`
	Waves      []Wave                    `json:"waves,omitzero"`
	ExpectedAt *metav1.Time              `json:"expectedAt,omitempty"`
	NoEstimate string                    `json:"expectedReason,omitempty"`
	Failing    []v1alpha1.ClusterSummary `json:"failing,omitempty"`
	Blocked    []v1alpha1.ClusterSummary `json:"blocked,omitempty"`
	MayApprove *bool                     `json:"mayApprove,omitempty"`
	Command    string                    `json:"command,omitempty"`

	awaitsApproval bool
	code           exit.Code
	now            time.Time
}

// Wave of a rollout.
type Wave struct {
	Name            string                 `json:"name"`
	Clusters        v1alpha1.ClusterCounts `json:"clusters"`
	DoneAt          *metav1.Time           `json:"doneAt,omitempty"`
	IsCurrent       bool                   `json:"current,omitempty"`
	RequireApproval bool                   `json:"requireApproval,omitempty"`
	MinSuccessTime  string                 `json:"minSuccessTime,omitempty"`
}

// Names is the FleetDiskImage.
func (w *Rollout) Names() []string { return []string{render.Reference("FleetDiskImage", w.Name)} }

// NewRollout decides what the screen says.
func NewRollout(s RolloutSnapshot) *Rollout {
	img, st := s.Image, &s.Image.Status
	w := &Rollout{Envelope: render.NewEnvelope("WhyRollout"), Name: img.Name, Version: img.Spec.Version, now: s.Now}
	w.code, _ = rollout.ExitCodeOf(img, rollout.WantOf(img), rollout.WaitOptions{})
	if st.ObservedGeneration != img.Generation { // the status is about the spec before
		w.Verdict, w.Message = Waits, "the hub has not seen the last change yet"
		return w
	}
	w.Phase, w.Reason, w.Message, w.ExpectedAt, w.NoEstimate = st.Phase, st.Reason, st.Message, st.ExpectedAt, st.ExpectedReason
	w.Clusters, w.Waves, w.Failing, w.Blocked = &st.Clusters, []Wave{}, st.Failing, st.Blocked
	switch {
	case st.Phase == v1alpha1.RolloutSucceeded:
		w.Verdict = Ready
	case st.Phase == v1alpha1.RolloutFailed, isTrue(st.Conditions, v1alpha1.ConditionStalled):
		w.Verdict = Failed
	case v1alpha1.IsHeldReason(st.Reason):
		w.Verdict = Held
	default:
		w.Verdict = Waits
	}
	rules := map[string]v1alpha1.Wave{}
	for _, rule := range img.Spec.Rollout.Waves {
		rules[rule.Name] = rule
	}
	for _, wave := range st.Waves {
		minSuccessTime := rules[wave.Name].MinSuccessTime
		if minSuccessTime == nil {
			minSuccessTime = img.Spec.Rollout.MinSuccessTime
		}
		view := Wave{Name: wave.Name, Clusters: wave.Clusters, DoneAt: wave.DoneAt, IsCurrent: wave.Name == st.CurrentWave, RequireApproval: rules[wave.Name].RequireApproval}
		if minSuccessTime != nil && minSuccessTime.Duration > 0 {
			view.MinSuccessTime = render.Duration(minSuccessTime.Duration)
		}
		w.Waves = append(w.Waves, view)
	}
	if w.Command, w.awaitsApproval = rollout.NextCommand(img), rollout.AwaitsApproval(img); w.Command != "" {
		w.MayApprove = s.MayApprove
	}
	return w
}

// ExitCode is that of rollout status.
func (w *Rollout) ExitCode() exit.Code { return w.code }

// Summary is the answer in one line.
func (w *Rollout) Summary() string { return w.Name + " " + w.Version + ": " + w.verdictText() }

func (w *Rollout) verdictText() string {
	switch {
	case w.Phase == "":
		return rollout.Unobserved
	case w.Reason == "":
		return string(w.Phase)
	default:
		return string(w.Phase) + ", " + w.Reason
	}
}

// Draw draws the screen.
func (w *Rollout) Draw(p *render.Page) {
	p.Line(append(append(render.Line{}, signOf(w.Verdict).With("%s %s", w.Name, w.Version)...), render.Text(": %s", w.verdictText()))...)
	if w.Message != "" {
		p.Line(render.Text("%s", firstSentences(w.Message)))
	}
	switch {
	case w.ExpectedAt != nil:
		p.Line(render.Text("Expected to be done at %s (in %s).", render.Clock(w.now, w.ExpectedAt.Time), render.Duration(max(0, w.ExpectedAt.Sub(w.now)))))
	case w.NoEstimate != "" && w.NoEstimate != w.Reason:
		p.Line(render.Text("No estimate: %s.", noEstimateText(w.NoEstimate)))
	}
	if len(w.Waves) > 0 {
		p.Gap()
		t := p.Table(render.Column{Title: "WAVE", Elastic: true, Min: 8}, render.Column{Title: "DONE", Right: true}, render.Column{Title: "RUN", Right: true},
			render.Column{Title: "FAIL", Right: true}, render.Column{Title: "WAIT", Right: true, Drop: 1}, render.Column{Title: "", Drop: 2})
		for _, wave := range w.Waves {
			t.Row(wave.cells(w)...)
		}
	}
	w.drawClusters(p, "FAILED", w.Failing)
	w.drawClusters(p, "A PERSON IS NEEDED IN", w.Blocked)
	if w.Command != "" {
		may := ""
		if w.MayApprove != nil {
			switch {
			case *w.MayApprove:
				may = "You may do that:"
			case w.awaitsApproval:
				may = "You may not do that; somebody with verb approve (ClusterRole ot-fleet-approver) runs:"
			default:
				may = "You may not do that; somebody who may update FleetDiskImages runs:"
			}
		}
		p.Section("NEXT", render.Text("%s", may))
		p.Command(w.Command)
	}
}

func (wave Wave) cells(w *Rollout) []render.Line {
	c := wave.Clusters
	sign := render.Waiting
	switch {
	case c.AllFailed() > 0:
		sign = render.Failed
	case wave.DoneAt != nil:
		sign = render.Done
	case c.Progressing > 0:
		sign = render.Running
	}
	var notes []string
	if wave.DoneAt != nil {
		notes = append(notes, "done for "+render.Age(w.now, wave.DoneAt.Time))
	}
	if wave.MinSuccessTime != "" {
		notes = append(notes, "minSuccessTime "+wave.MinSuccessTime)
	}
	if wave.RequireApproval {
		notes = append(notes, "requireApproval")
	}
	return append([]render.Line{sign.With("%s", wave.Name)}, render.Cells(
		fmt.Sprint(c.Succeeded)+"/"+fmt.Sprint(c.Total), fmt.Sprint(c.Progressing), fmt.Sprint(c.AllFailed()), fmt.Sprint(c.ToApply+c.Deferred), strings.Join(notes, ", "))...)
}

func (w *Rollout) drawClusters(p *render.Page, title string, clusters []v1alpha1.ClusterSummary) {
	if len(clusters) == 0 {
		return
	}
	p.Section(title)
	t := p.Table(render.Column{Title: "CLUSTER", Elastic: true, Min: 10}, render.Column{Title: "REASON"}, render.Column{Title: "MESSAGE", Elastic: true, Min: 10, Drop: 1})
	for _, c := range clusters {
		t.Row(render.Cells(c.Cluster, c.Reason, c.Message)...)
	}
}

// firstSentences leaves out the commands that the screen has itself.
func firstSentences(message string) string {
	before, _, _ := strings.Cut(message, ": kubectl ")
	return before
}

func noEstimateText(reason string) string {
	if text := eta.Unknown(reason).Message(); text != "" {
		return text
	}
	return reason
}
