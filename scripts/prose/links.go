package main

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
)

var (
	heading    = regexp.MustCompile(`(?m)^#{1,6}\s+(.*)$`)
	notInSlugs = regexp.MustCompile("[^a-z0-9 _-]")
	codeBlock  = regexp.MustCompile("(?s)```.*?```")
)

// checkLinks finds links of a page that lead to no file of the repository, or to no
// heading of the page that they name. Links to other sites are not followed.
func checkLinks(file, text string) (found []finding) {
	withoutCode := codeBlock.ReplaceAllStringFunc(text, func(block string) string { return strings.Repeat("\n", strings.Count(block, "\n")) })
	for n, line := range strings.Split(withoutCode, "\n") {
		for _, m := range link.FindAllStringSubmatch(line, -1) {
			if problem := checkTarget(file, text, m[1]); problem != "" {
				found = append(found, finding{file, n + 1, fmt.Sprintf("link %s: %s", m[1], problem)})
			}
		}
	}
	return found
}

func checkTarget(file, text, target string) string {
	if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
		return ""
	}
	name, anchor, _ := strings.Cut(target, "#")
	if name != "" {
		name = path.Join(path.Dir(file), name)
		content, err := os.ReadFile(name)
		if info, statErr := os.Stat(name); statErr != nil {
			return "there is no such file"
		} else if info.IsDir() {
			return ""
		} else if err != nil {
			return err.Error()
		}
		text = string(content)
	}
	if anchor == "" || anchors(text)[anchor] {
		return ""
	}
	return "the page has no such heading"
}

// anchors are the fragments that GitHub gives the headings of a page.
func anchors(text string) map[string]bool {
	slugs := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
		slug := strings.ReplaceAll(notInSlugs.ReplaceAllString(strings.ToLower(strings.TrimSpace(m[1])), ""), " ", "-")
		slugs[slug] = true
	}
	return slugs
}
