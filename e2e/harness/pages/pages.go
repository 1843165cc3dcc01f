//go:build linux

// Package pages reads the examples and commands of the documentation and runs commands as a
// reader would, in a shell with kubectl and helm.
package pages

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Page is one page of the documentation.
type Page struct {
	// Path is relative to the repository.
	Path string
	text string
}

// Root is the repository's path as seen from the folder of an e2e suite.
var Root = filepath.Join("..", "..", "..")

// Read reads a page by its path in the repository.
func Read(t *testing.T, path string) Page {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Root, path))
	require.NoError(t, err)
	return Page{Path: path, text: string(text)}
}

// List returns the pages that people follow: the README, docs/ without the generated reference,
// and the charts' pages.
func List(t *testing.T) []Page {
	t.Helper()
	found := []Page{Read(t, "README.md")}
	for _, folder := range []string{"docs", "charts"} {
		err := fs.WalkDir(os.DirFS(Root), folder, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && (path == "docs/reference" || strings.HasSuffix(path, "/runbooks")):
				return fs.SkipDir
			case filepath.Ext(path) == ".md":
				found = append(found, Read(t, path))
			}
			return nil
		})
		require.NoError(t, err)
	}
	return found
}

var (
	blockPattern  = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")
	inlinePattern = regexp.MustCompile("`((?:kubectl|helm|scripts/[a-z-]+) [^`]+)`")
	heredoc       = regexp.MustCompile(`<<'?(\w+)'?`)
	remark        = regexp.MustCompile(`\s+# .*$`)
)

// Text returns the page as it is.
func (p Page) Text() string { return p.text }

// Blocks returns the fenced blocks of a language.
func (p Page) Blocks(language string) (blocks []string) {
	for _, found := range blockPattern.FindAllStringSubmatch(p.text, -1) {
		if found[1] == language {
			blocks = append(blocks, found[2])
		}
	}
	return blocks
}

// Block returns the only block of a language that contains a text.
func (p Page) Block(t *testing.T, language, contains string) string {
	t.Helper()
	blocks := slices.DeleteFunc(p.Blocks(language), func(block string) bool { return !strings.Contains(block, contains) })
	require.Len(t, blocks, 1, "%s: %s blocks that contain %q", p.Path, language, contains)
	return blocks[0]
}

// Commands returns the commands of a page in their order: those of its console blocks, each with
// its continued lines and here-documents, and those that a sentence names with arguments.
func (p Page) Commands() (commands []string) {
	for _, block := range p.Blocks("console") {
		commands = append(commands, splitCommands(block)...)
	}
	prose := blockPattern.ReplaceAllString(p.text, "")
	for _, found := range inlinePattern.FindAllStringSubmatch(prose, -1) {
		if words := strings.Fields(found[1]); len(words) > 3 || len(words) == 3 && !strings.HasPrefix(words[2], "-") {
			commands = append(commands, found[1])
		}
	}
	return commands
}

// splitCommands returns the commands of a console block. If any line starts with a prompt, lines
// without one are output.
func splitCommands(block string) (commands []string) {
	prompted := strings.HasPrefix(block, "$ ") || strings.Contains(block, "\n$ ")
	until, open := "", false
	for line := range strings.Lines(block) {
		line = strings.TrimSuffix(line, "\n")
		if open {
			commands[len(commands)-1] += "\n" + line
			open = until != "" && line != until || until == "" && strings.HasSuffix(line, `\`)
			continue
		}
		command, hasPrompt := strings.CutPrefix(line, "$ ")
		if prompted && !hasPrompt || strings.TrimSpace(command) == "" || strings.HasPrefix(command, "#") {
			continue
		}
		until = ""
		if found := heredoc.FindStringSubmatch(command); found != nil {
			until = found[1]
		}
		open = until != "" || strings.HasSuffix(command, `\`)
		if !open {
			command = remark.ReplaceAllString(command, "")
		}
		commands = append(commands, command)
	}
	return commands
}

// ShownColumns returns the header row that a page shows below a command.
func (p Page) ShownColumns(t *testing.T, command string) []string {
	t.Helper()
	block := p.Block(t, "console", "$ "+command+"\n")
	_, output, _ := strings.Cut(block, "$ "+command+"\n")
	header, _, _ := strings.Cut(output, "\n")
	return strings.Fields(header)
}
