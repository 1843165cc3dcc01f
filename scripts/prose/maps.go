package main

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// packageMaps are the pages that only map packages, with the folders whose packages they name: by
// their paths below the root.
var packageMaps = map[string][]struct{ root, folders string }{
	"agent/README.md": {{"agent", "agent/*"}, {"agent", "agent/controllers/*"}},
	"hub/README.md":   {{"hub", "hub/*"}, {"hub", "hub/controllers/*"}},
	"e2e/README.md":   {{"e2e/harness", "e2e/harness/*"}, {"e2e/suites", "e2e/suites/*"}},
}

var inlineCode = regexp.MustCompile("`([^`]+)`")

// checkMap finds packages that the first columns of a package map do not name, and names there
// that are of no package.
func checkMap(file, text string) (found []finding) {
	packages := map[string]bool{}
	for _, below := range packageMaps[file] {
		files, _ := filepath.Glob(below.folders + "/*.go") // the pattern is valid
		for _, file := range files {
			if name, err := filepath.Rel(below.root, filepath.Dir(file)); err == nil {
				packages[name] = false
			}
		}
	}
	if len(packages) == 0 {
		return nil
	}
	for n, line := range strings.Split(text, "\n") {
		first, _, isRow := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		if !isRow || !strings.HasPrefix(line, "| ") {
			continue
		}
		for _, m := range inlineCode.FindAllStringSubmatch(first, -1) {
			if _, exists := packages[m[1]]; !exists {
				found = append(found, finding{file, n + 1, "there is no package " + m[1]})
			}
			packages[m[1]] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		if !packages[name] {
			found = append(found, finding{file, 1, "no row of a table names package " + name})
		}
	}
	return found
}
