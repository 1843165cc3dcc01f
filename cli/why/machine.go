package why

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/explain"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
)

func isTrue(conditions []metav1.Condition, conditionType string) bool {
	return meta.IsStatusConditionTrue(conditions, conditionType)
}

// MachineSnapshot is a machine, and its image where that could be read.
type MachineSnapshot struct {
	Now     time.Time
	Cluster string
	Machine *v1alpha1.VirtualMachine
	Image   *ImageSnapshot
	// Scope are the flags by which the cluster was reached, quoted for a shell.
	Scope []string
}

// Machine is the answer of kubectl ot why machine.
type Machine struct {
	render.Envelope
	Cluster   string                `json:"cluster"`
	Namespace string                `json:"namespace"`
	Name      string                `json:"name"`
	Verdict   Verdict               `json:"verdict"`
	Phase     v1alpha1.MachinePhase `json:"phase,omitempty"`
	Reason    v1alpha1.Reason       `json:"reason,omitempty"`
	Message   string                `json:"message,omitempty"`
	Since     *metav1.Time          `json:"since,omitempty"`
	Steps     []Step                `json:"steps"`
	// Expected is when its image is there.
	Expected *readapi.Estimate `json:"expected,omitempty"`
	Command  string            `json:"command,omitempty"`

	now time.Time
}

// Step is one of what has to be there before the machine runs.
type Step struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Text    string  `json:"text"`
}

// machineConditions are the steps of a machine, in the order in which they are taken.
var machineConditions = []struct{ name, conditionType string }{
	{"image", v1alpha1.ConditionImageAcquired},
	{"root disk", v1alpha1.ConditionRootDiskReady},
	{"data disks", v1alpha1.ConditionDisksReady},
	{"machine", v1alpha1.ConditionMachineCreated},
}

// Names is the VirtualMachine.
func (w *Machine) Names() []string { return []string{render.Reference("VirtualMachine", w.Name)} }

// NewMachine decides what the screen says.
func NewMachine(s MachineSnapshot) *Machine {
	st := &s.Machine.Status
	w := &Machine{
		Envelope: render.NewEnvelope("WhyMachine"), Cluster: s.Cluster, Namespace: s.Machine.Namespace, Name: s.Machine.Name,
		Phase: st.Phase, Reason: st.Reason, Message: explain.DescribeMessage(string(st.Phase), st.Message), Verdict: Waits, Steps: []Step{}, now: s.Now,
	}
	switch {
	case isTrue(st.Conditions, v1alpha1.ConditionReady):
		w.Verdict = Ready
	case st.Phase == v1alpha1.MachineFailed:
		w.Verdict = Failed
	case isTrue(st.Conditions, v1alpha1.ConditionStalled), st.Reason.NeedsUserAction():
		w.Verdict = Held
	}
	if ready := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady); ready != nil {
		w.Since = &ready.LastTransitionTime
	}
	for _, of := range machineConditions {
		if c := meta.FindStatusCondition(st.Conditions, of.conditionType); c != nil {
			w.Steps = append(w.Steps, newStep(of.name, c))
		}
	}
	if st.Phase == "" {
		w.Command = DoctorCommand(s.Scope)
	}
	if s.Image == nil || w.Verdict == Ready {
		return w
	}
	image := NewImage(*s.Image)
	if image.Verdict != Ready {
		w.Expected = image.Expected
		if w.Command == "" {
			w.Command = strings.Join(append([]string{shellword.FormatCommand("kubectl ot why image %s -n %s", image.Name, image.Namespace)}, s.Scope...), " ")
		}
		if image.Verdict == Failed || image.Verdict == Held {
			w.Verdict = image.Verdict
		}
	}
	return w
}

func newStep(name string, c *metav1.Condition) Step {
	step := Step{Name: name, Verdict: Waits, Text: c.Message}
	switch c.Status {
	case metav1.ConditionTrue:
		step.Verdict = Ready
	case metav1.ConditionUnknown:
		step.Verdict = Unknown
	}
	if step.Text == "" {
		step.Text = c.Reason
	}
	return step
}

// ExitCode of the answer.
func (w *Machine) ExitCode() exit.Code { return exitCodeOf(w.Verdict) }

// Summary is the answer in one line.
func (w *Machine) Summary() string {
	text := w.Namespace + "/" + w.Name + ": " + w.state()
	if w.Expected != nil && w.Expected.At != nil {
		text += ", its image is expected at " + render.Clock(w.now, w.Expected.At.Time)
	}
	return text
}

func (w *Machine) state() string { return explain.FormatState(string(w.Phase), string(w.Reason)) }

// Draw draws the screen.
func (w *Machine) Draw(p *render.Page) {
	line := append(render.Line{}, signOf(w.Verdict).With("%s/%s", w.Namespace, w.Name)...)
	line = append(line, render.Text(": %s", w.state()))
	if w.Since != nil {
		line = append(line, render.Text(", for %s", render.Age(w.now, w.Since.Time)))
	}
	p.Line(line...)
	if w.Message != "" {
		p.Line(render.Text("%s", w.Message))
	}
	if len(w.Steps) > 0 {
		p.Gap()
	}
	for _, step := range w.Steps {
		p.Line(append(append(render.Line{render.Text("  ")}, signOf(step.Verdict).With("%-10s", step.Name)...), render.Text("  %s", step.Text))...)
	}
	if w.Expected != nil {
		p.Gap()
		if w.Expected.At != nil {
			p.Line(render.Text("Its image: %s Then its root disk is cloned, and it starts.", lowerFirst(expectedSentence(w.now, w.Expected))))
		} else {
			p.Line(render.Text("Its image: %s", lowerFirst(expectedSentence(w.now, w.Expected))))
		}
	}
	if w.Command != "" {
		p.Command(w.Command)
	}
}
