// Command reference writes the generated pages of docs/reference from their
// sources: reasons and conditions from api/v1alpha1, waits from agent/importcause, metrics from what both programs
// register, flags from what they accept, rights from the charts' roles, and limits
// from the CRDs. The page of doctor's checks is a copy. It runs in the repository's root.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// page is one file of docs/reference.
type page struct {
	file, title, intro string
	render             func() (string, error)
}

var pages = []page{
	{"conditions.md", "Conditions and reasons", "A condition's type says what is judged, its reason why. Both are closed sets: scripts may compare them.", renderConditions},
	{"waits.md", "Why does it wait?", "What layers below an image say, and what its status makes of it. Of the rows of one layer, the first that matches counts. The message quotes the layer. An image holds a slot meanwhile, except for answers of the API server and snapshots.", renderWaits},
	{"metrics.md", "Metrics", "Served at `/metrics` of each program, for accounts that RBAC lets read the path. controller-runtime's own metrics are served too.", renderMetrics},
	{"flags.md", "Flags", "The charts set them from their values. Both programs print this list with `--help`, and controller-runtime's `--zap-…` for logs besides.", renderFlags},
	{"rights.md", "Rights", "What the accounts of both programs may do. A right without a namespace holds in the whole cluster.", renderRights},
	{"limits.md", "Limits", "What the API server refuses to store. Lengths are in characters; sizes of lists and maps are in items.", renderLimits},
}

func main() {
	for _, p := range pages {
		body, err := p.render()
		if err == nil {
			text := fmt.Sprintf("<!-- Written by make generate. -->\n# %s\n\n%s\n\n%s\n", p.title, p.intro, strings.TrimSpace(body))
			err = os.WriteFile(filepath.Join("docs", "reference", p.file), []byte(text), 0o644)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "reference: writing %s: %v\n", p.file, err)
			os.Exit(1)
		}
	}
	if err := copyDoctor("cli/doctor/doctor.md", "docs/reference/doctor.md"); err != nil {
		fmt.Fprintf(os.Stderr, "reference: %v\n", err)
		os.Exit(1)
	}
}

// copyDoctor copies the page that kubectl ot doctor quotes: its own module embeds it, and
// cannot embed one outside.
func copyDoctor(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("reading the checks of doctor: %w", err)
	}
	if err := os.WriteFile(to, append([]byte("<!-- Written by make generate from "+from+". -->\n"), text...), 0o644); err != nil {
		return fmt.Errorf("writing the checks of doctor: %w", err)
	}
	return nil
}

// table renders rows below a header. Cells may not hold a line break.
func table(header []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) {
		for i, cell := range cells {
			cells[i] = strings.ReplaceAll(strings.Join(strings.Fields(cell), " "), "|", `\|`)
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	line(header)
	b.WriteString(strings.Repeat("| --- ", len(header)) + "|\n")
	for _, row := range rows {
		line(row)
	}
	return b.String()
}
