package why

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
)

// Cluster is the answer of kubectl ot why cluster.
type Cluster struct {
	render.Envelope
	Name          string                  `json:"name"`
	Verdict       Verdict                 `json:"verdict"`
	Reason        string                  `json:"reason,omitempty"`
	Message       string                  `json:"message,omitempty"`
	Since         *metav1.Time            `json:"since,omitempty"`
	LastReport    *metav1.Time            `json:"lastReport,omitempty"`
	AgentVersion  string                  `json:"agentVersion,omitempty"`
	Problems      []Problem               `json:"problems"`
	Budget        Budget                  `json:"budget"`
	Images        *v1alpha1.MemberImages  `json:"images,omitempty"`
	Failing       []v1alpha1.ImageSummary `json:"failing,omitempty"`
	ReservedUntil *metav1.Time            `json:"reservedUntil,omitempty"`
	Commands      []string                `json:"commands,omitempty"`

	now time.Time
}

// Names is the MemberCluster.
func (w *Cluster) Names() []string { return []string{render.Reference("MemberCluster", w.Name)} }

// Problem is a condition that is not as it should be.
type Problem struct {
	Condition string      `json:"condition"`
	Reason    string      `json:"reason"`
	Message   string      `json:"message"`
	Since     metav1.Time `json:"since"`
}

// goodIfFalse are the conditions that are well while they are False.
var goodIfFalse = map[string]bool{v1alpha1.ConditionReconciling: true, v1alpha1.ConditionStalled: true, v1alpha1.ConditionReady: true, v1alpha1.ConditionQuarantined: true}

// NewCluster decides what the screen says of a MemberCluster.
func NewCluster(now time.Time, member *v1alpha1.MemberCluster) *Cluster {
	st := &member.Status
	w := &Cluster{
		Envelope: render.NewEnvelope("WhyCluster"), Name: member.Name, LastReport: st.LastReport, AgentVersion: st.AgentVersion, Problems: []Problem{},
		Budget: Budget{Slots: st.SlotsUsed, Budget: st.Budget, OwnConcurrency: st.OwnConcurrency}, Images: st.Images, Failing: st.Failing, now: now, Verdict: Waits,
	}
	if st.Policy != nil {
		planned, _, _ := policy.Parse(st.Policy.Data)
		w.Budget.PolicyConcurrency, w.Budget.PolicySource = &planned.Concurrency, st.Policy.Source
	}
	if st.Transfers != nil {
		w.Budget.Granted = &st.Transfers.Granted
		w.ReservedUntil = st.Transfers.HeldUntil
	}
	for _, c := range st.Conditions {
		if c.Type == v1alpha1.ConditionReady {
			w.Reason, w.Message, w.Since = c.Reason, c.Message, &c.LastTransitionTime
		}
		if !goodIfFalse[c.Type] && c.Status != metav1.ConditionTrue {
			w.Problems = append(w.Problems, Problem{c.Type, c.Reason, c.Message, c.LastTransitionTime})
		}
	}
	switch {
	case member.Spec.Quarantine != nil:
		w.Verdict, w.Reason, w.Message = Held, v1alpha1.ReasonQuarantined, member.Spec.Quarantine.Reason
	case st.LastReport == nil && !isTrue(st.Conditions, v1alpha1.ConditionStalled): // otherwise a person has to act
		w.Verdict, w.Reason = Unknown, v1alpha1.ReasonNeverReported
		w.Commands = append(w.Commands, shellword.FormatCommand("kubectl ot doctor --member-context %s", member.Name))
	case st.SilentSince != nil:
		w.Verdict, w.Since = Unknown, st.SilentSince
		w.Commands = append(w.Commands, shellword.FormatCommand("kubectl ot doctor --member-context %s", member.Name))
	case isTrue(st.Conditions, v1alpha1.ConditionStalled):
		w.Verdict = Failed
	case st.CountFailedImages() > 0:
		w.Verdict = Failed
		if isTrue(st.Conditions, v1alpha1.ConditionReady) {
			// Its conditions are all well: they say nothing of its images, nor since when one failed.
			w.Reason, w.Message, w.Since = string(readapi.MemberFailing), render.Count(st.CountFailedImages(), "failed image"), nil
		}
	case isTrue(st.Conditions, v1alpha1.ConditionReady):
		w.Verdict = Ready
	}
	for _, f := range st.Failing {
		w.Commands = append(w.Commands, shellword.FormatCommand("kubectl ot why image %s -n %s --cluster %s", f.Name, f.Namespace, member.Name))
	}
	return w
}

// ExitCode of the answer.
func (w *Cluster) ExitCode() exit.Code { return exitCodeOf(w.Verdict) }

// Summary is the answer in one line.
func (w *Cluster) Summary() string { return w.Name + ": " + string(w.Verdict) + ", " + w.Reason }

// Draw draws the screen.
func (w *Cluster) Draw(p *render.Page) {
	line := append(render.Line{}, signOf(w.Verdict).With("%s", w.Name)...)
	line = append(line, render.Text(": %s", w.Reason))
	if w.Since != nil {
		line = append(line, render.Text(", for %s", render.Age(w.now, w.Since.Time)))
	}
	if w.LastReport != nil {
		line = append(line, render.Dim("  (last report %s ago", render.Age(w.now, w.LastReport.Time)))
		if w.AgentVersion != "" {
			line = append(line, render.Dim(", agent %s", w.AgentVersion))
		}
		line = append(line, render.Dim(")"))
	}
	p.Line(line...)
	if w.Message != "" {
		p.Line(render.Text("%s", w.Message))
	}
	if len(w.Problems) > 0 {
		p.Gap()
		t := p.Table(render.Column{Title: "CONDITION"}, render.Column{Title: "REASON"}, render.Column{Title: "FOR", Right: true, Drop: 2}, render.Column{Title: "MESSAGE", Elastic: true, Min: 10, Drop: 1})
		for _, c := range w.Problems {
			t.Row(render.Cells(c.Condition, c.Reason, render.Age(w.now, c.Since.Time), c.Message)...)
		}
	}
	w.drawImages(p)
	if w.ReservedUntil != nil && w.Verdict == Unknown {
		p.Line(render.Text("Its slots of the fleet's budget stay reserved until %s.", render.Clock(w.now, w.ReservedUntil.Time)))
	}
	for _, command := range w.Commands {
		p.Command(command)
	}
}

func (w *Cluster) drawImages(p *render.Page) {
	if b := w.Budget; b.Budget != nil && b.Slots != nil {
		text := fmt.Sprintf("%d of %d slots are taken", *b.Slots, *b.Budget)
		var limits []string
		if b.PolicyConcurrency != nil {
			limits = append(limits, fmt.Sprintf("policy: %d", *b.PolicyConcurrency))
		}
		if b.OwnConcurrency != nil {
			limits = append(limits, fmt.Sprintf("its own ConfigMap: %d", *b.OwnConcurrency))
		}
		if b.Granted != nil {
			limits = append(limits, fmt.Sprintf("grant: %d", *b.Granted))
		}
		if len(limits) > 0 {
			text += " (" + strings.Join(limits, " · ") + ")"
		}
		p.Section("BUDGET", render.Text("%s", text))
	}
	if i := w.Images; i != nil {
		p.Section("IMAGES", render.Text("%d ready, %d importing, %d queued, %d failed", i.Ready, i.Syncing, i.Queued, i.Failed))
	}
	if len(w.Failing) > 0 {
		t := p.Table(render.Column{Title: "IMAGE", Elastic: true, Min: 10}, render.Column{Title: "REASON"}, render.Column{Title: "MESSAGE", Elastic: true, Min: 10, Drop: 1})
		for _, f := range w.Failing {
			t.Row(render.Cells(f.Namespace+"/"+f.Name, string(f.Reason), f.Message)...)
		}
	}
}

func lowerFirst(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToLower(first)) + text[size:]
}
