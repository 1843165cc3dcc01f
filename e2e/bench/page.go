//go:build linux

package main

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// sizingPage holds one table for each benchmark, between two comments that name it.
const sizingPage = "docs/operate/sizing.md"

// tableMarkers matches the table of one benchmark in a page. Submatches: the comment before it,
// the benchmark's name, the table, and the comment after it.
var tableMarkers = regexp.MustCompile(`(?s)(<!-- make bench ONLY=([a-z0-9-]+) -->\n)(.*?)(<!-- end -->)`)

// replaceTables replaces the tables of the benchmarks that were measured and keeps the others. It
// returns the names of those that the page has no place for.
func replaceTables(page string, measured map[string][]figureRow) (replaced string, homeless []string) {
	placed := map[string]bool{}
	replaced = tableMarkers.ReplaceAllStringFunc(page, func(whole string) string {
		parts := tableMarkers.FindStringSubmatch(whole)
		figures, found := measured[parts[2]]
		if !found {
			return whole
		}
		placed[parts[2]] = true
		return parts[1] + "\n" + formatMarkdown(figures) + "\n" + parts[4]
	})
	for name := range measured {
		if !placed[name] {
			homeless = append(homeless, name)
		}
	}
	return replaced, homeless
}

// formatMarkdown formats figures as one table. What a figure is compared with follows it in the same
// cell: most have none.
func formatMarkdown(figures []figureRow) string {
	var text strings.Builder
	text.WriteString("| Figure | Measured | Wanted |\n| --- | --- | --- |\n")
	for _, f := range figures {
		got := f.measured
		if f.beside != "" {
			got += "; plain hub: " + f.beside
		}
		if f.missed {
			got += " (missed)"
		}
		fmt.Fprintf(&text, "| %s | %s | %s |\n", escapeCell(f.name), escapeCell(got), escapeCell(cmp.Or(f.wanted, "-")))
	}
	return text.String()
}

func escapeCell(text string) string {
	return strings.NewReplacer("|", `\|`, "->", "→", "<", "&lt;").Replace(text)
}

// writeTables writes the measured figures into the page.
func writeTables(path string, measured map[string][]figureRow) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the page for the figures: %w", err)
	}
	replaced, homeless := replaceTables(string(page), measured)
	if len(homeless) > 0 {
		return fmt.Errorf("page %s has no place for the figures of %s", path, strings.Join(homeless, ", "))
	}
	if err := os.WriteFile(path, []byte(replaced), 0o600); err != nil {
		return fmt.Errorf("writing the figures: %w", err)
	}
	return nil
}
