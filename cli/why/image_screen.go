package why

import (
	"fmt"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/explain"
	"github.com/pelotech/ot-fleet/api/numbers"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/cli/render"
)

func signOf(v Verdict) render.Sign {
	switch v {
	case Ready:
		return render.Done
	case Failed:
		return render.Failed
	case Held:
		return render.Attention
	case Unknown:
		return render.Unknown
	default:
		return render.Waiting
	}
}

// Draw draws the screen.
func (w *Image) Draw(p *render.Page) {
	line := append(render.Line{}, signOf(w.Verdict).With("%s/%s", w.Namespace, w.Name)...)
	line = append(line, render.Text(" in %s: %s", w.Cluster, w.State()))
	if w.QueuedAt != nil && w.Verdict != Ready {
		line = append(line, render.Text(", for %s", render.Age(w.now, w.QueuedAt.Time)))
	}
	if w.ObservedAt.Time.Before(w.now) {
		line = append(line, render.Dim("  (as of %s ago)", render.Age(w.now, w.ObservedAt.Time)))
	}
	p.Line(line...)
	if w.Unknown != "" {
		p.Line(render.Unknown.With("This may be out of date: %s.", w.Unknown)...)
	}
	if text := w.ShownMessage(); text != "" {
		p.Line(render.Text("%s", text))
	}
	if text := w.expectation(); text != "" {
		p.Line(render.Text("%s", text))
	}
	w.drawQueue(p)
	w.drawBudget(p)
	if w.HolderCount > 0 {
		text := strings.Join(w.Holders, ", ")
		switch more := int(w.HolderCount) - len(w.Holders); {
		case text == "":
			text = render.Count(w.HolderCount, "machine")
		case more > 0:
			text += numbers.Sprintf(" … %d in all", w.HolderCount)
		}
		p.Section("WHO WAITS FOR IT", render.Text("%s", text))
	}
	if w.Sooner != nil {
		priority := ""
		if w.Budget.MaxPriority != nil {
			priority = numbers.Sprintf("priority counts up to %d here; ", *w.Budget.MaxPriority)
		}
		p.Section("TO HAVE IT SOONER", render.Text("%sconcurrency %d would bring it ~%s sooner:", priority, w.Sooner.Concurrency, render.Duration(time.Duration(w.Sooner.Seconds)*time.Second)))
		p.Command(w.Sooner.Command)
	}
	if w.Command != "" {
		p.Command(w.Command)
	}
}

// expectation is what goes first, and until when.
func (w *Image) expectation() string {
	return strings.TrimSpace(w.Waiting() + " " + expectedSentence(w.now, w.Expected))
}

// expectedSentence says when something is expected, or why that is unknown.
func expectedSentence(now time.Time, e *readapi.Estimate) string {
	switch {
	case e == nil:
		return ""
	case e.At == nil:
		return "No estimate: " + e.Message + "."
	}
	text := "Expected at " + render.Clock(now, e.At.Time)
	if e.AtMost {
		text = "Expected by " + render.Clock(now, e.At.Time) + " at the latest"
	}
	text += " (in " + render.Duration(max(0, e.At.Sub(now)))
	if e.Earliest != nil && e.Latest != nil && !e.AtMost {
		text += "; " + render.Clock(now, e.Earliest.Time) + "–" + render.Clock(now, e.Latest.Time)
	}
	return text + ")."
}

func (w *Image) drawQueue(p *render.Page) {
	if len(w.Queue) == 0 {
		return
	}
	p.Gap()
	t := p.Table(
		render.Column{Title: "#", Right: true}, render.Column{Title: ""}, render.Column{Title: "IMAGE", Elastic: true, Min: 12}, render.Column{Title: "DONE", Drop: 1},
		render.Column{Title: "SIZE", Right: true, Drop: 3}, render.Column{Title: "RATE", Right: true, Drop: 4}, render.Column{Title: "LEFT", Right: true}, render.Column{Title: "SOURCE", Drop: 5},
	)
	for n := range w.Queue {
		i := &w.Queue[n]
		mark, place := render.Line{}, render.Line{render.Running.Span()}
		if i.This {
			mark = render.Line{render.Bold("→")}
		}
		if i.Place > 0 {
			place = render.Words(fmt.Sprint(i.Place))
		}
		t.Row(place, mark, render.Words(i.Namespace+"/"+i.Name), doneOf(i), render.Words(sizeOfImport(i)), render.Words(rateOf(i)), render.Words(leftOf(w.now, i.Expected)), render.Words(i.Source))
		if note := i.PassedOver(w.now, func(at time.Time) string { return render.Clock(w.now, at) }); note != "" {
			t.AddNote(render.Dim("%s", note))
		}
	}
	if w.Behind > 0 {
		t.AddNote(render.Dim("%d more wait", w.Behind))
	}
}

const barWidth = 10

func doneOf(i *explain.Import) render.Line {
	if i.Place > 0 || i.AtMost || i.Bytes <= 0 {
		return nil
	}
	return render.Line{render.Bar(i.Share, barWidth), render.Text(" %4s", render.Percent(i.Share))}
}

func sizeOfImport(i *explain.Import) string {
	switch {
	case i.Bytes <= 0:
		return "?"
	case i.AtMost:
		return "≤ " + render.Bytes(i.Bytes)
	default:
		return render.Bytes(i.Bytes)
	}
}

func rateOf(i *explain.Import) string {
	if i.BytesPerSecond <= 0 {
		return ""
	}
	return render.Rate(i.BytesPerSecond)
}

// leftOf is how long something still takes; a dash where that is unknown.
func leftOf(now time.Time, e *readapi.Estimate) string {
	if e == nil || e.At == nil {
		return "-"
	}
	return render.Duration(max(0, e.At.Sub(now)))
}

func (w *Image) drawBudget(p *render.Page) {
	if parts := w.BudgetChain(); len(parts) > 0 {
		p.Section(numbers.Sprintf("WHY THE BUDGET IS %d", *w.Budget.Budget), render.Text("%s", strings.Join(parts, " · ")))
	}
}
