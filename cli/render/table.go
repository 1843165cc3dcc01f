package render

import (
	"slices"
	"strings"
)

// Column of a table.
type Column struct {
	Title string
	// Right: numbers are aligned at their ends.
	Right bool
	// Wide: shown with -o wide only.
	Wide bool
	// Drop: left out where the terminal is too narrow, the highest first; 0 never.
	Drop int
	// Age: it changes as time passes, which is no change to who watches.
	Age bool
	// Elastic: cut where the terminal is too narrow and nothing is left to drop. Other
	// columns are never cut.
	Elastic bool
	// Min width of an elastic column; 12 by default.
	Min int
}

// Table has rows of cells. All lines are as wide as the widest cells need, less where the
// terminal is narrow.
type Table struct {
	wide    bool
	columns []Column
	rows    []row
	indent  int
}

type row struct {
	cells []Line
	// note is a line below the row instead of cells, command one to copy.
	note    Line
	command string
}

// Row adds a row; cells that are missing are empty.
func (t *Table) Row(cells ...Line) { t.rows = append(t.rows, row{cells: cells}) }

// AddNote adds a line below the last row, such as what to do about it.
func (t *Table) AddNote(spans ...Span) { t.rows = append(t.rows, row{note: spans}) }

// Command adds a command to copy below the last row. It is never wrapped.
func (t *Table) Command(command string) { t.rows = append(t.rows, row{command: command}) }

// Indent moves the table by some cells to the right.
func (t *Table) Indent(cells int) *Table {
	t.indent = cells
	return t
}

const columnGap = 2

func (t *Table) shown() []int {
	var shown []int
	for i, c := range t.columns {
		if !c.Wide || t.wide {
			shown = append(shown, i)
		}
	}
	return shown
}

func (r row) cell(i int) Line {
	if i < len(r.cells) {
		return r.cells[i]
	}
	return nil
}

func (t *Table) plain(out terminal) []string {
	shown := t.shown()
	width := make([]int, len(t.columns))
	for i, c := range t.columns {
		if !out.NoHeaders {
			width[i] = out.width(Words(c.Title))
		}
		for _, r := range t.rows {
			width[i] = max(width[i], out.width(r.cell(i)))
		}
	}
	total := func() int {
		sum := t.indent + columnGap*max(0, len(shown)-1)
		for _, i := range shown {
			sum += width[i]
		}
		return sum
	}
	if out.Width > 0 {
		for total() > out.Width {
			drop := -1
			for _, i := range shown {
				if t.columns[i].Drop > 0 && (drop < 0 || t.columns[i].Drop >= t.columns[drop].Drop) {
					drop = i
				}
			}
			if drop < 0 {
				break
			}
			shown = slices.DeleteFunc(shown, func(i int) bool { return i == drop })
		}
		for _, i := range shown {
			if c := t.columns[i]; c.Elastic && total() > out.Width {
				least := c.Min
				if least == 0 {
					least = 12
				}
				width[i] = max(min(least, width[i]), width[i]-(total()-out.Width))
			}
		}
	}
	format := func(cells func(i int) Line) string {
		parts := make([]string, 0, len(shown))
		for _, i := range shown {
			parts = append(parts, out.fit(cells(i), width[i], t.columns[i].Right))
		}
		return strings.Repeat(" ", t.indent) + strings.Join(parts, strings.Repeat(" ", columnGap))
	}
	var lines []string
	if !out.NoHeaders && slices.ContainsFunc(t.columns, func(c Column) bool { return c.Title != "" }) {
		lines = append(lines, format(func(i int) Line { return Line{{Text: t.columns[i].Title, Style: Faint}} }))
	}
	for _, r := range t.rows {
		if r.command != "" {
			lines = append(lines, strings.Repeat(" ", t.indent)+commandBlock{r.command}.plain(out)[0])
			continue
		}
		if r.note != nil {
			lines = append(lines, out.wrap(append(Line{{Text: strings.Repeat(" ", t.indent+2)}}, r.note...))...)
			continue
		}
		lines = append(lines, format(r.cell))
	}
	return lines
}

func (t *Table) markdown(o Options) []string {
	shown := t.shown()
	titles, rules := make([]string, 0, len(shown)), make([]string, 0, len(shown))
	for _, i := range shown {
		titles = append(titles, escape(Words(t.columns[i].Title), o))
		rule := "---"
		if t.columns[i].Right {
			rule = "---:"
		}
		rules = append(rules, rule)
	}
	lines := []string{"", "| " + strings.Join(titles, " | ") + " |", "| " + strings.Join(rules, " | ") + " |"}
	for _, r := range t.rows {
		cells := make([]string, 0, len(shown))
		for n, i := range shown {
			cell := escape(r.cell(i), o)
			switch {
			case n > 0:
			case r.command != "":
				cell = strings.ReplaceAll(codeSpan(printable(o.Complete(r.command))), "|", `\|`)
			case r.note != nil:
				cell = escape(r.note, o)
			}
			cells = append(cells, cell)
		}
		lines = append(lines, "| "+strings.Join(cells, " | ")+" |")
	}
	return append(lines, "")
}
