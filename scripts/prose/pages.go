package main

import (
	"fmt"
	"regexp"
	"strings"
)

const (
	maxParagraphWords = 60
	maxCellWords      = 25
	// README.md is the front door; those below it are maps of their packages.
	maxReadmeWords    = 700
	maxPackageMapWord = 500
)

var (
	link     = regexp.MustCompile(`\]\(([^)]*)\)`)
	listItem = regexp.MustCompile(`^\s*([-*+]|\d+\.)\s`)
)

// checkPage finds paragraphs, table cells and pages of more words than can be
// skimmed. Code blocks and front matter do not count.
func checkPage(file, text string) (found []finding) {
	words, paragraph, start := 0, 0, 0
	end := func() {
		if paragraph > maxParagraphWords {
			found = append(found, finding{file, start, fmt.Sprintf("a paragraph of %d words: at most %d", paragraph, maxParagraphWords)})
		}
		paragraph = 0
	}
	fenced := false
	for n, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "```") {
			end()
			fenced = !fenced
			continue
		}
		if fenced {
			continue
		}
		count := countWords(trimmed)
		words += count
		switch {
		case trimmed == "", strings.HasPrefix(trimmed, "#"):
			end()
		case strings.HasPrefix(trimmed, "|"):
			end()
			found = append(found, checkRow(file, n+1, trimmed)...)
		default:
			if listItem.MatchString(line) {
				end()
			}
			if paragraph == 0 {
				start = n + 1
			}
			paragraph += count
		}
	}
	end()
	most := 0
	switch {
	case file == "README.md":
		most = maxReadmeWords
	case packageMaps[file] != nil:
		most = maxPackageMapWord
	}
	if most > 0 && words > most {
		found = append(found, finding{file, 1, fmt.Sprintf("a page of %d words: at most %d", words, most)})
	}
	return found
}

func checkRow(file string, line int, row string) (found []finding) {
	for _, cell := range strings.Split(strings.ReplaceAll(row, `\|`, " "), "|") {
		if count := countWords(cell); count > maxCellWords {
			found = append(found, finding{file, line, fmt.Sprintf("a table cell of %d words: at most %d", count, maxCellWords)})
		}
	}
	return found
}

// countWords counts what a person reads: the target of a link is not.
func countWords(text string) int {
	count := 0
	for _, word := range strings.Fields(link.ReplaceAllString(text, "]")) {
		if strings.ContainsFunc(word, func(r rune) bool { return r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' }) {
			count++
		}
	}
	return count
}
