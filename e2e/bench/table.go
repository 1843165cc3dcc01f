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
	// beside is what was measured of something else, and ratio how the two compare.
	beside, ratio string
	wanted, ok    string
	missed        bool
}

// figureAtMost is a figure that may not exceed a limit.
func figureAtMost(name string, value, limit float64, measured string) figureRow {
	wanted := fmt.Sprintf("at most %.2f", limit)
	if limit >= 1<<10 {
		wanted = fmt.Sprintf("at most %.0f KiB", limit/(1<<10))
	}
	return figureJudged(name, measured, wanted, value <= limit)
}

// figureJudged is a figure that holds or does not.
func figureJudged(name, measured, wanted string, holds bool) figureRow {
	f := figureRow{name: name, measured: measured, wanted: wanted, ok: "yes", missed: !holds}
	if !holds {
		f.ok = "NO"
	}
	return f
}

// figureInfo is a figure that nothing is wanted of.
func figureInfo(name, measured string) figureRow {
	return figureRow{name: name, measured: measured, wanted: "-", ok: "-"}
}

// formatTable of figures; those that stand beside others have one of their own.
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
			if head {
				_, _ = fmt.Fprintln(w, strings.Join(titles, "\t"))
				head = false
			}
			_, _ = fmt.Fprintln(w, strings.Join(cells, "\t"))
		}
		_ = w.Flush() // a strings.Builder takes everything
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
