package render_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/cli/render"
)

func TestShellWord(t *testing.T) {
	for word, want := range map[string]string{
		"bergen":                   "bergen",
		"vmdi-farm/ubuntu-2.1.0":   "vmdi-farm/ubuntu-2.1.0",
		"a=b":                      "a=b",
		"=ls":                      "'=ls'",
		"~root":                    "'~root'",
		"x;curl evil|sh":           "'x;curl evil|sh'",
		"it's $(here) `too`":       `'it'\''s $(here) ` + "`too`'",
		"":                         "''",
		"two words":                "'two words'",
		"a\nb":                     `$'a\u000ab'`,
		"a\u202eb":                 `$'a\u202eb'`,
		"a\x1b[31m":                `$'a\u001b[31m'`,
		"\u200b'\\":                `$'\u200b\'\\'`,
		"a\U000e0041":              `$'a\U000e0041'`,
		"--kubeconfig=/tmp/evil":   "'\ufffd--kubeconfig=/tmp/evil'",
		"a\xff":                    "'a\ufffd'",
		"ubuntu-24.04 (Überprüft)": "'ubuntu-24.04 (Überprüft)'",
	} {
		assert.Equal(t, want, render.ShellWord(word), "%q", word)
		if bash, err := exec.LookPath("bash"); err == nil && want[0] != '\'' || strings.Contains(want, "$(") {
			command := exec.CommandContext(t.Context(), bash, "-c", "printf %s "+render.ShellWord(word))
			command.Env = []string{"LC_ALL=C.UTF-8"}
			read, err := command.Output()
			require.NoError(t, err)
			assert.Equal(t, word, string(read), "as a shell reads it")
		}
	}
	assert.Equal(t, "kubectl ot why image 'x'\\''; reboot' -n n", render.FormatCommand("kubectl ot why image %s -n %s", "x'; reboot", "n"))
}

func TestCommandsInMarkdown(t *testing.T) {
	page := &render.Page{}
	table := page.Table(render.Column{Title: "A"})
	for _, name := range []string{"plain", "a`; reboot #", "a|b", "a``b"} {
		table.Command(render.FormatCommand("kubectl ot why image %s", name))
	}
	text := render.Markdown(page)
	for _, want := range []string{"| `kubectl ot why image plain` |", "| ``kubectl ot why image 'a`; reboot #'`` |", "| `kubectl ot why image 'a\\|b'` |", "| ```kubectl ot why image 'a``b'``` |"} {
		assert.Contains(t, text, want)
	}
}

// TestNamesInCommandsAreQuoted reads the sources: each name in a command that is printed goes through
// FormatCommand, since members choose names.
func TestNamesInCommandsAreQuoted(t *testing.T) {
	files := token.NewFileSet()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		parsed, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		formats := map[ast.Node]bool{}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "FormatCommand" {
					formats[n.Args[0]] = true
				}
			case *ast.BinaryExpr:
				text := literal(lastOf(n.X))
				assert.False(t, strings.HasSuffix(text, " ") && (strings.Contains(text, "kubectl ") || strings.HasPrefix(text, " -")),
					"%s: a name is added to %q: use render.FormatCommand", files.Position(n.Pos()), text)
			case *ast.BasicLit:
				_, command, _ := strings.Cut(literal(n), "kubectl ")
				assert.False(t, strings.Contains(command, "%s") && !formats[n], "%s: a name is formatted into %q: use render.FormatCommand", files.Position(n.Pos()), command)
			}
			return true
		})
		return nil
	})
	require.NoError(t, err)
}

// lastOf returns the last operand of a sum.
func lastOf(x ast.Expr) ast.Expr {
	if sum, ok := x.(*ast.BinaryExpr); ok {
		return sum.Y
	}
	return x
}

func literal(n ast.Node) string {
	lit, ok := n.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	text, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return text
}
