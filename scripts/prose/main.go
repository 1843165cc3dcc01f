// Command prose checks how the repository reads: words and phrases that only its
// authors would understand, names of functions that do not say what they do, and
// pages that are too long to skim. It prints one line per finding and exits with 1
// where there is one.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// finding is one place that has to be rewritten.
type finding struct {
	file string
	line int
	text string
}

func (f finding) String() string { return fmt.Sprintf("%s:%d: %s", f.file, f.line, f.text) }

func main() {
	files, err := listFiles()
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(1)
	}
	var findings []finding
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			fmt.Fprintln(os.Stderr, "prose:", err)
			os.Exit(1)
		}
		findings = append(findings, checkFile(file, text)...)
	}
	for _, f := range findings {
		fmt.Println(f)
	}
	if len(findings) > 0 {
		fmt.Fprintf(os.Stderr, "prose: %d findings; CONTRIBUTING.md, section Language, says why\n", len(findings))
		os.Exit(1)
	}
}

// listFiles returns the files that git tracks or would track, below the working
// directory.
func listFiles() ([]string, error) {
	out, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate").Output()
	if err != nil {
		return nil, fmt.Errorf("listing the files of the repository: %w", err)
	}
	var files []string
	for _, file := range strings.Split(strings.TrimRight(string(out), "\x00"), "\x00") {
		if _, err := os.Stat(file); err == nil && isProse(file) {
			files = append(files, file)
		}
	}
	return files, nil
}

// notProse are folders that hold what others wrote, what a run wrote, or the words
// that this command looks for.
var notProse = []string{"scripts/prose/", "e2e/suites/chart/testdata/", "kind-configs/results.md", "ui/dist/", "LICENSE"}

// proseFiles end in these; a file without an extension is a script.
var proseFiles = []string{"", ".go", ".md", ".gotmpl", ".yaml", ".yml", ".tpl", ".txt", ".bash", ".html", ".svg"}

func isProse(file string) bool {
	excluded := slices.ContainsFunc(notProse, func(prefix string) bool { return strings.HasPrefix(file, prefix) })
	return !excluded && !strings.Contains(path.Base(file), "zz_generated") && slices.Contains(proseFiles, path.Ext(file))
}

func checkFile(file string, text []byte) []finding {
	if bytes.IndexByte(text, 0) >= 0 {
		return nil // not text
	}
	found := checkPhrases(file, string(text))
	switch path.Ext(file) {
	case ".go":
		found = append(found, checkNames(file, text)...)
	case ".md":
		found = append(found, checkPage(file, string(text))...)
		found = append(found, checkMap(file, string(text))...)
		found = append(found, checkLinks(file, string(text))...)
		found = append(found, checkTests(file, string(text))...)
	}
	return found
}
