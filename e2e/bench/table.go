//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// figure is a row of the table.
type figure struct {
	name, measured string
	// beside is what was measured of something else, and ratio how the two compare.
	beside, ratio string
	wanted, ok    string
	missed        bool
}

// atMost is a figure that may not exceed a limit.
func atMost(name string, value, limit float64, measured string) figure {
	wanted := fmt.Sprintf("at most %.2f", limit)
	if limit >= 1<<10 {
		wanted = fmt.Sprintf("at most %.0f KiB", limit/(1<<10))
	}
	return judged(name, measured, wanted, value <= limit)
}

// judged is a figure that holds or does not.
func judged(name, measured, wanted string, holds bool) figure {
	f := figure{name: name, measured: measured, wanted: wanted, ok: "yes", missed: !holds}
	if !holds {
		f.ok = "NO"
	}
	return f
}

// told is a figure that nothing is wanted of.
func told(name, measured string) figure {
	return figure{name: name, measured: measured, wanted: "-", ok: "-"}
}

// table of figures; those that stand beside others have one of their own.
func table(figures []figure) string {
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

func indent(lines []string) []string {
	indented := make([]string, len(lines))
	for i, l := range lines {
		indented[i] = "  " + l
	}
	return indented
}
