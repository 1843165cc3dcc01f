//go:build linux

package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// figure is a row of the table.
type figure struct {
	name, measured, wanted, ok string
	missed                     bool
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
	f := figure{name, measured, wanted, "yes", !holds}
	if !holds {
		f.ok = "NO"
	}
	return f
}

// told is a figure that nothing is wanted of.
func told(name, measured string) figure {
	return figure{name: name, measured: measured, wanted: "-", ok: "-"}
}

func table(figures []figure) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "FIGURE\tMEASURED\tWANTED\tOK")
	for _, f := range figures {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.name, f.measured, f.wanted, f.ok)
	}
	_ = w.Flush() // a strings.Builder takes everything
	return text.String()
}

func indent(lines []string) []string {
	indented := make([]string, len(lines))
	for i, l := range lines {
		indented[i] = "  " + l
	}
	return indented
}
