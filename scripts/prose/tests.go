package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var namedTest = regexp.MustCompile("`([a-z0-9_./-]+) ((?:Test|Fuzz)\\w+)`")

// checkTests finds tests that a page names by package and function and that do not exist. In
// SECURITY.md every row of a table names one: what nothing shows is no protection.
func checkTests(file, text string) (found []finding) {
	lines := strings.Split(text, "\n")
	for n, line := range lines {
		named := namedTest.FindAllStringSubmatch(line, -1)
		for _, m := range named {
			if !testExists(m[1], m[2]) {
				found = append(found, finding{file, n + 1, fmt.Sprintf("there is no test %s in %s", m[2], m[1])})
			}
		}
		isHeader := n+1 < len(lines) && strings.HasPrefix(lines[n+1], "| ---")
		if file == "SECURITY.md" && strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| ---") && !isHeader && len(named) == 0 {
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
