package why

import (
	"fmt"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
)

func formatInt(n int32) string { return fmt.Sprint(n) }

// state is phase and reason, as kubectl get shows them.
func (w *Image) state() string {
	switch {
	case w.Phase == "" && w.Reason == "":
		return "not known"
	case w.Reason == "" || string(w.Reason) == string(w.Phase):
		return string(w.Phase)
	default:
		return string(w.Phase) + ", " + string(w.Reason)
	}
}

func (v Verdict) sign() render.Sign {
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
	line := append(render.Line{}, w.Verdict.sign().With("%s/%s", w.Namespace, w.Name)...)
	line = append(line, render.Text(" in %s: %s", w.Cluster, w.state()))
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
	if w.Message != "" && (w.GoFirst == nil || w.Verdict != Waits) {
		p.Line(render.Text("%s", w.Message))
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
			text += fmt.Sprintf(" … %d in all", w.HolderCount)
		}
		p.Section("WHO WAITS FOR IT", render.Text("%s", text))
	}
	if w.Sooner != nil {
		priority := ""
		if w.Budget.MaxPriority != nil {
			priority = fmt.Sprintf("priority counts up to %d here; ", *w.Budget.MaxPriority)
		}
		p.Section("TO HAVE IT SOONER", render.Text("%sconcurrency %d would bring it ~%s sooner:", priority, w.Sooner.Concurrency, render.Duration(time.Duration(w.Sooner.Seconds)*time.Second)))
		p.Command(w.Sooner.Command)
	}
}

// expectation is what goes first, and until when.
func (w *Image) expectation() string {
	text := ""
	if w.GoFirst != nil && w.Verdict == Waits {
		text = "Waits for a slot. "
		if w.Budget.Slots != nil && w.Budget.Budget != nil {
			text += fmt.Sprintf("%d of %d are taken, ", *w.Budget.Slots, *w.Budget.Budget)
		}
		if *w.GoFirst == 1 {
			text += "1 image goes first. "
		} else {
			text += fmt.Sprintf("%d images go first. ", *w.GoFirst)
		}
	}
	return strings.TrimSpace(text + expectedSentence(w.now, w.Expected))
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
	for _, i := range w.Queue {
		mark, place := render.Line{}, render.Line{render.Running.Span()}
		if i.This {
			mark = render.Line{render.Bold("→")}
		}
		if i.Place > 0 {
			place = render.Words(fmt.Sprint(i.Place))
		}
		t.Row(place, mark, render.Words(i.Namespace+"/"+i.Name), i.done(), render.Words(i.size()), render.Words(i.rate()), render.Words(leftOf(w.now, i.Expected)), render.Words(i.Source))
		if note := i.explainPassedOver(w.now); note != "" {
			t.AddNote(render.Dim("%s", note))
		}
	}
	if w.Behind > 0 {
		t.AddNote(render.Dim("%d more wait", w.Behind))
	}
}

const barWidth = 10

func (i Import) done() render.Line {
	if i.Place > 0 || i.AtMost || i.Bytes <= 0 {
		return nil
	}
	return render.Line{render.Bar(i.Share, barWidth), render.Text(" %4s", render.Percent(i.Share))}
}

func (i Import) size() string {
	switch {
	case i.Bytes <= 0:
		return "?"
	case i.AtMost:
		return "≤ " + render.Bytes(i.Bytes)
	default:
		return render.Bytes(i.Bytes)
	}
}

func (i Import) rate() string {
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

// explainPassedOver says why an image of the queue is passed over.
func (i Import) explainPassedOver(now time.Time) string {
	switch {
	case i.Place == 0:
		return ""
	case i.NotBefore != nil && i.NotBefore.After(now):
		return fmt.Sprintf("backs off until %s, after attempt %d", render.Clock(now, i.NotBefore.Time), i.Attempt)
	case i.Reason.NeedsUserAction():
		return "is passed over: " + string(i.Reason)
	case i.Reason == v1alpha1.ReasonWaitingForSource, i.Reason == v1alpha1.ReasonWaitingForFleet, i.Reason == v1alpha1.ReasonNamespaceShare:
		return string(i.Reason)
	default:
		return ""
	}
}

func (w *Image) drawBudget(p *render.Page) {
	b := w.Budget
	if w.Verdict == Ready || w.Verdict == Failed || b.Budget == nil {
		return
	}
	var parts []string
	if b.PolicyConcurrency != nil {
		text := fmt.Sprintf("policy: concurrency %d", *b.PolicyConcurrency)
		if b.PolicySource != "" {
			text += " (" + b.PolicySource + ")"
		}
		parts = append(parts, text)
	}
	if b.OwnConcurrency != nil {
		parts = append(parts, fmt.Sprintf("this cluster's own ConfigMap: %d", *b.OwnConcurrency))
	} else {
		parts = append(parts, "this cluster's own ConfigMap: none")
	}
	if b.Granted != nil {
		text := fmt.Sprintf("grant: %d", *b.Granted)
		if b.FleetConcurrency != nil {
			text += fmt.Sprintf(" of %d", *b.FleetConcurrency)
		}
		parts = append(parts, text)
	}
	if b.SourceConcurrency != nil {
		parts = append(parts, fmt.Sprintf("its source, in the whole fleet: %d", *b.SourceConcurrency))
	}
	p.Section(fmt.Sprintf("WHY THE BUDGET IS %d", *b.Budget), render.Text("%s", strings.Join(parts, " · ")))
}
