package doctor

import (
	"fmt"
	"strings"

	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/cli/render"
)

var signs = map[Status]render.Sign{Pass: render.Done, Warn: render.Attention, Fail: render.Failed, Skip: render.Unknown}

// Draw draws the screen: a line for each finding, and what to do below those that need it.
func (r *Report) Draw(p *render.Page) {
	from := "as its API server shows it"
	if r.View == ViewHub {
		from = "as the hub knows it"
	}
	p.Line(render.Bold("DOCTOR %s", r.Cluster), render.Text(" · %s", from))
	group := ""
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.Group != group {
			group = f.Group
			p.Section(group)
		}
		f.draw(p)
	}
	p.Gap()
	p.Line(r.summaryLine()...)
	if id := r.firstToMend(); id != "" {
		p.Command(shellword.FormatCommand("kubectl ot doctor --explain %s", id))
	}
}

// firstToMend returns the first check that failed, or else the first that warns.
func (r *Report) firstToMend() string {
	for _, status := range []Status{Fail, Warn} {
		for i := range r.Findings {
			if r.Findings[i].Status == status {
				return r.Findings[i].ID
			}
		}
	}
	return ""
}

func (f *Finding) draw(p *render.Page) {
	line := render.Line{render.Text("  "), signs[f.Status].Span(), render.Bold(" %s", f.ID)}
	switch f.Status {
	case Skip:
		line = append(line, render.Text("  skipped: %s", f.Found))
	case Pass:
		line = append(line, render.Text("  %s", f.describe()))
	default:
		line = append(line, render.Text("  %s: %s", strings.ToLower(string(f.Status)), f.describe()))
	}
	p.Line(line...)
	if f.Status == Pass || f.Status == Skip {
		return
	}
	for _, part := range []struct{ title, text string }{{"Wanted", f.Wanted}, {"Why", f.Why}, {"Mend", f.Mend}} {
		if part.text != "" {
			p.Line(render.Dim("      %s: ", part.title), render.Text("%s", part.text))
		}
	}
}

// describe returns what was found of whom.
func (f *Finding) describe() string {
	if f.Subject == "" {
		return f.Found
	}
	return f.Subject + ": " + f.Found
}

func (r *Report) summaryLine() render.Line {
	line := render.Done.With("%d passed", r.Summary.Passed)
	for _, part := range []struct {
		sign  render.Sign
		count int
		word  string
	}{
		{render.Failed, r.Summary.Failed, "failed"},
		{render.Attention, r.Summary.Warned, "with a warning"},
		{render.Unknown, r.Summary.Skipped, "skipped"},
	} {
		if part.count > 0 {
			line = append(append(line, render.Text("   ")), part.sign.With("%d %s", part.count, part.word)...)
		}
	}
	if r.Summary.Unread > 0 {
		line = append(line, render.Text(", %d of them unread", r.Summary.Unread))
	}
	return line
}

// Names are the checks that failed or warn, for -o name.
func (r *Report) Names() []string {
	var names []string
	for i := range r.Findings {
		if f := &r.Findings[i]; f.Status == Fail || f.Status == Warn {
			names = append(names, fmt.Sprintf("check/%s", f.ID))
		}
	}
	return names
}
