package join

import (
	"github.com/pelotech/ot-fleet/cli/render"
)

// Plan is what a command does, or would do.
type Plan struct {
	render.Envelope
	// Name of the cluster on the hub.
	Name string `json:"name"`
	// Hub and Member are the contexts of both sides; Member is empty where it is not reached.
	Hub    string `json:"hub"`
	Member string `json:"member,omitempty"`
	// DryRun: nothing was done.
	DryRun bool   `json:"dryRun"`
	Steps  []Step `json:"steps"`
	// Stays and ByHand are those of a Departure.
	Stays    []string `json:"stays,omitempty"`
	ByHand   []string `json:"byHand,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// Names lists the MemberCluster.
func (p *Plan) Names() []string { return []string{render.Reference("MemberCluster", p.Name)} }

// Draw draws the steps on each side.
func (p *Plan) Draw(page *render.Page) {
	title := "DONE"
	if p.DryRun {
		title = "WOULD DO"
	}
	line := render.Line{render.Bold("%s", title), render.Text("  %s on hub %s", p.Name, p.Hub)}
	if p.Member != "" {
		line = append(line, render.Text(", in member %s", p.Member))
	}
	page.Line(line...)
	for _, s := range p.Steps {
		sign := render.Running
		if s.Action == Keep {
			sign = render.Done
		}
		page.Line(append(render.Line{render.Text("  ")}, sign.With("%s: %s", s.Side, s.text())...)...)
	}
	DrawRest(page, p.Stays, p.ByHand)
	for _, warning := range p.Warnings {
		page.Line(render.Attention.With("%s", warning)...)
	}
}

// text says of a step that keeps something that it does.
func (s Step) text() string {
	if s.Action == Keep {
		return s.Text + " (kept)"
	}
	return s.Text
}

// Line returns a step as a line that says how far it is.
func (s Step) Line(sign render.Sign, result string) render.Line {
	if result == "" {
		result = s.text()
	}
	return sign.With("%s: %s", s.Side, result)
}

// DrawRest draws what stays, and what a person still has to do.
func DrawRest(page *render.Page, stays, byHand []string) {
	for i, text := range stays {
		if i == 0 {
			page.Section("STAYS")
		}
		page.Line(render.Text("  %s", text))
	}
	for i, command := range byHand {
		if i == 0 {
			page.Section("BY HAND", render.Text("where the member is reached"))
		}
		page.Command(command)
	}
}

// Draw shows both fingerprints, one below the other.
func (a Acceptance) Draw(page *render.Page) {
	page.Line(render.Waiting.With("%s:", a.Text)...)
	page.Line(render.Text("    hub saw     %s", a.Hub))
	switch {
	case a.Agent == "":
		page.Line(render.Text("    agent says  (not read from here)   "), render.Attention.Span(), render.Text(" compare it yourself"))
	case a.Compared:
		page.Line(append(render.Line{render.Text("    agent says  %s   ", a.Agent)}, render.Done.With("the same")...)...)
	}
}
