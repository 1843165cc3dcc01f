//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// figureRow is a row of the table.
type figureRow struct {
	name, measured string
	// beside is the value that measured is compared with, and ratio their quotient.
	beside, ratio string
	// former is what the former version measured; empty where none is compared.
	former     string
	wanted, ok string
	missed     bool
}

// figureAtMost returns a figure with an upper limit.
func figureAtMost(name string, value, limit float64, measured string) figureRow {
	wanted := fmt.Sprintf("at most %.2f", limit)
	switch {
	case limit >= 10<<20:
		wanted = fmt.Sprintf("at most %.0f MiB", limit/(1<<20))
	case limit >= 1<<10:
		wanted = fmt.Sprintf("at most %.0f KiB", limit/(1<<10))
	}
	return figureJudged(name, measured, wanted, value <= limit)
}

// figureJudged returns a figure with a verdict.
func figureJudged(name, measured, wanted string, holds bool) figureRow {
	f := figureRow{name: name, measured: measured, wanted: wanted, ok: "yes", missed: !holds}
	if !holds {
		f.ok = "NO"
	}
	return f
}

// withGoal adds what the figure is to reach one day; to miss that is no failure.
func (f figureRow) withGoal(goal string) figureRow {
	f.wanted += "; the goal is " + goal
	return f
}

// figureInfo returns a figure without a limit.
func figureInfo(name, measured string) figureRow {
	return figureRow{name: name, measured: measured, wanted: "-", ok: "-"}
}

// formatTable formats figures as a table, and compared figures as a second one.
func formatTable(figures []figureRow) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, compared := range []bool{false, true} {
		head := true
		for _, f := range figures {
			if compared != (f.beside != "") {
				continue
			}
			cells := []string{f.name, f.measured, f.wanted, f.ok}
			titles := []string{"FIGURE", "MEASURED", "WANTED", "OK"}
			if compared {
				cells, titles = slices.Insert(cells, 2, f.beside, f.ratio), slices.Insert(titles, 2, "BESIDE", "RATIO")
			}
			if f.former != "" {
				cells, titles = slices.Insert(cells, 2, f.former), slices.Insert(titles, 2, "FORMER")
			}
			if head {
				_, _ = fmt.Fprintln(w, strings.Join(titles, "\t"))
				head = false
			}
			_, _ = fmt.Fprintln(w, strings.Join(cells, "\t"))
		}
		_ = w.Flush() // writing to a strings.Builder never fails
	}
	return text.String()
}

func indentLines(lines []string) []string {
	indented := make([]string, len(lines))
	for i, l := range lines {
		indented[i] = "  " + l
	}
	return indented
}
