package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	namedTest = regexp.MustCompile("`([a-z0-9_./-]+) ((?:Test|Fuzz)\\w+)`")
	chartTest = regexp.MustCompile("`(charts/[a-z0-9_./-]+_test\\.yaml)`")
)

// checkTests finds tests that a page names by package and function and that do not exist. In a
// table whose last column is "Shown by" every row names one: what nothing shows does not hold.
func checkTests(file, text string) (found []finding) {
	lines := strings.Split(text, "\n")
	needsTest := false
	for n, line := range lines {
		named := 0
		for _, m := range namedTest.FindAllStringSubmatch(line, -1) {
			named++
			if !testExists(m[1], m[2]) {
				found = append(found, finding{file, n + 1, fmt.Sprintf("there is no test %s in %s", m[2], m[1])})
			}
		}
		for _, m := range chartTest.FindAllStringSubmatch(line, -1) {
			named++
			if _, err := os.Stat(m[1]); err != nil {
				found = append(found, finding{file, n + 1, "there is no " + m[1]})
			}
		}
		switch isHeader := n+1 < len(lines) && strings.HasPrefix(lines[n+1], "| ---"); {
		case isHeader:
			needsTest = strings.HasSuffix(line, "| Shown by |")
		case needsTest && named == 0 && strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| ---"):
			found = append(found, finding{file, n + 1, "the row names no test, as `agent/image TestName`"})
		}
	}
	return found
}

func testExists(folder, name string) bool {
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		return false
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}
