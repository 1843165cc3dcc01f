package doctor

import (
	_ "embed"
	"fmt"
	"strings"
)

// PagePath is where the sections of the checks are, from the project's root.
const PagePath = "docs/reference/doctor.md"

// Page is that page: what each check looks at, why, and how to mend what it finds. Findings
// and --explain quote it.
//
//go:embed doctor.md
var Page string

// section is a check's part of the page.
type section struct {
	// text in full, without its heading.
	text      string
	why, mend string
}

// Paragraphs that a section has.
const (
	whyPrefix  = "**Why.** "
	mendPrefix = "**Mend.** "
)

var sections = parseSections(Page)

func parseSections(page string) map[string]section {
	found := map[string]section{}
	for _, part := range strings.Split("\n"+page, "\n## ")[1:] {
		id, text, _ := strings.Cut(part, "\n")
		s := section{text: strings.TrimSpace(text)}
		for _, paragraph := range strings.Split(s.text, "\n\n") {
			if why, ok := strings.CutPrefix(paragraph, whyPrefix); ok {
				s.why = plainText(why)
			}
			if mend, ok := strings.CutPrefix(paragraph, mendPrefix); ok {
				s.mend = plainText(mend)
			}
		}
		found[strings.TrimSpace(id)] = s
	}
	return found
}

// plainText removes the backticks of Markdown.
func plainText(text string) string { return strings.ReplaceAll(strings.TrimSpace(text), "`", "") }

// Explain returns the section of a check.
func Explain(id string) (string, error) {
	s, known := sections[id]
	if !known {
		return "", fmt.Errorf("there is no check %q; the checks are %s", id, strings.Join(IDs(), ", "))
	}
	return "## " + id + "\n\n" + s.text + "\n", nil
}
