package top

import (
	"fmt"

	"github.com/pelotech/ot-fleet/api/numbers"
	"github.com/pelotech/ot-fleet/cli/render"
)

// rowCount is how many rows there are.
func (t *Top) rowCount() int { return len(t.Imports) + len(t.Clusters) + len(t.Sources) }

// Draw draws the screen.
func (t *Top) Draw(p *render.Page) {
	p.Line(t.totalsLine()...)
	if t.Totals.Unknown > 0 {
		p.Line(render.Unknown.With("%s not known", render.Count(t.Totals.Unknown, "cluster"))...)
	}
	if t.Unread != "" {
		p.Line(render.Unknown.With("%s", t.Unread)...)
	}
	if t.rowCount() == 0 {
		switch {
		case t.Filter != "":
			p.Line(render.Text("Nothing contains %q.", t.Filter))
		case t.Subject == Imports:
			p.Line(render.Text("Nothing is imported."))
		}
		return
	}
	p.Gap()
	switch t.Subject {
	case Imports:
		t.drawImports(p)
	case Clusters:
		t.drawClusters(p)
	default:
		t.drawSources(p)
	}
}

func (t *Top) totalsLine() render.Line {
	line := render.Line{render.Bold("FLEET"), render.Text("  %d/%d slots of the clusters · %s · %d queued", t.Totals.Slots, t.Totals.Budget, render.Rate(t.Totals.BytesPerSecond), t.Totals.Queued)}
	if at := t.Totals.NextFreeAt; at != nil && t.Totals.Slots > 0 {
		if at.After(t.now) {
			line = append(line, render.Text(" · next free slot in ~%s", render.Duration(at.Sub(t.now))))
		} else {
			line = append(line, render.Text(" · a slot is free"))
		}
	}
	return line
}

// isDrawn reports whether a row is within the window of rows that fits the terminal.
func (t *Top) isDrawn(row int) bool {
	return row >= t.from && (t.limit == 0 || row < t.from+t.limit)
}

func (t *Top) mark(row int) render.Line {
	if row == t.cursor {
		return render.Line{{Text: "›", ASCII: ">", Style: render.Strong}}
	}
	return nil
}

// firstColumn has the cursor, where there is one.
func (t *Top) firstColumn(columns ...render.Column) []render.Column {
	if t.cursor < 0 {
		return columns
	}
	return append([]render.Column{{Title: " "}}, columns...)
}

func (t *Top) addCells(table *render.Table, row int, cells ...render.Line) {
	if t.cursor >= 0 {
		cells = append([]render.Line{t.mark(row)}, cells...)
	}
	table.Row(cells...)
}

const barWidth = 10

func (t *Top) drawImports(p *render.Page) {
	table := p.Table(t.firstColumn(
		render.Column{Title: "CLUSTER", Elastic: true, Min: 8}, render.Column{Title: "IMAGE", Elastic: true, Min: 10}, render.Column{Title: "DONE", Drop: 2}, render.Column{Title: "OF", Right: true, Drop: 3},
		render.Column{Title: "RATE", Right: true, Drop: 1}, render.Column{Title: "LEFT", Right: true}, render.Column{Title: "TRY", Right: true, Drop: 5}, render.Column{Title: "SOURCE", Drop: 4},
	)...)
	for row, i := range t.Imports {
		if !t.isDrawn(row) {
			continue
		}
		done, of := render.Line{render.Text("%s", render.Bytes(i.BytesDone))}, "?"
		if !i.AtMost {
			done = render.Line{render.Bar(i.Share, barWidth), render.Text(" %4s", render.Percent(i.Share))}
		}
		if i.Bytes > 0 {
			of = render.Bytes(i.Bytes)
			if i.AtMost {
				of = "≤ " + of
			}
		}
		rate := render.Words("-")
		if i.BytesPerSecond > 0 {
			rate = render.Words(render.Rate(i.BytesPerSecond))
		}
		if i.Slow {
			rate = render.Attention.With("slow %s", render.Rate(i.BytesPerSecond))
		}
		left := "-"
		if i.ExpectedAt != nil {
			left = render.Duration(max(0, i.ExpectedAt.Sub(t.now)))
		}
		try := ""
		if i.MaxAttempts > 0 {
			try = fmt.Sprintf("%d/%d", i.Attempt, i.MaxAttempts)
		}
		t.addCells(table, row, render.Words(i.Cluster), render.Words(i.Namespace+"/"+i.Name), done, render.Words(of), rate, render.Words(left), render.Words(try), render.Words(i.Source))
	}
}

func (t *Top) drawClusters(p *render.Page) {
	table := p.Table(t.firstColumn(
		render.Column{Title: "CLUSTER", Elastic: true, Min: 10}, render.Column{Title: "SLOTS", Right: true}, render.Column{Title: "GRANTED", Right: true, Drop: 3}, render.Column{Title: "QUEUED", Right: true},
		render.Column{Title: "OLDEST", Right: true, Drop: 2}, render.Column{Title: "RATE", Right: true, Drop: 1}, render.Column{Title: "FAILED", Right: true, Drop: 1},
	)...)
	number := func(n *int32) string {
		if n == nil {
			return "-"
		}
		return render.Number(*n)
	}
	for row, c := range t.Clusters {
		switch {
		case !t.isDrawn(row):
		case c.Unknown != "":
			t.addCells(table, row, render.Words(c.Name), render.Unknown.With("%s", c.Unknown))
		default:
			oldest := "-"
			if c.OldestQueuedAt != nil {
				oldest = render.Age(t.now, c.OldestQueuedAt.Time)
			}
			t.addCells(table, row, append([]render.Line{render.Words(c.Name)}, render.Cells(
				numbers.Sprintf("%d/%d", c.Slots, c.Budget), number(c.Granted), render.Number(c.Queued), oldest, render.Rate(c.BytesPerSecond), number(c.Failed))...)...)
		}
	}
}

func (t *Top) drawSources(p *render.Page) {
	table := p.Table(t.firstColumn(
		render.Column{Title: "SOURCE", Elastic: true, Min: 10}, render.Column{Title: "IMPORTS", Right: true}, render.Column{Title: "CLUSTERS", Right: true, Drop: 2},
		render.Column{Title: "RATE", Right: true}, render.Column{Title: "WAITING", Right: true, Drop: 1}, render.Column{Title: "TRANSFERRED", Right: true, Drop: 3},
	)...)
	for row, s := range t.Sources {
		transferred := "-"
		if s.TransferredBytes != nil {
			transferred = render.Bytes(*s.TransferredBytes)
		}
		if t.isDrawn(row) {
			t.addCells(table, row, append([]render.Line{render.Words(s.Name)}, render.Cells(
				render.Number(s.Imports), render.Number(s.Clusters), render.Rate(s.BytesPerSecond), render.Number(s.Waiting), transferred)...)...)
		}
	}
}
