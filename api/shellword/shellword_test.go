package shellword_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/shellword"
)

func TestQuote(t *testing.T) {
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
		assert.Equal(t, want, shellword.Quote(word), "%q", word)
		if bash, err := exec.LookPath("bash"); err == nil && want[0] != '\'' || strings.Contains(want, "$(") {
			command := exec.CommandContext(t.Context(), bash, "-c", "printf %s "+shellword.Quote(word))
			command.Env = []string{"LC_ALL=C.UTF-8"}
			read, err := command.Output()
			require.NoError(t, err)
			assert.Equal(t, word, string(read), "as a shell reads it")
		}
	}
	assert.Equal(t, "kubectl ot why image 'x'\\''; reboot' -n n", shellword.FormatCommand("kubectl ot why image %s -n %s", "x'; reboot", "n"))
}

// TestNamesInCommandsAreQuoted reads the sources: each name in a command that is printed goes through
// FormatCommand, since members choose names. So do messages of hub and agent.
func TestNamesInCommandsAreQuoted(t *testing.T) {
	files := token.NewFileSet()
	for _, folder := range []string{"agent", "api", "cli", "hub"} {
		require.NoError(t, filepath.WalkDir("../../"+folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "hub/rollout/approvals.go") {
				return err // the schema restricts the words of approvals
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
						"%s: a name is added to %q: use shellword.FormatCommand", files.Position(n.Pos()), text)
				case *ast.BasicLit:
					_, command, _ := strings.Cut(literal(n), "kubectl ")
					assert.False(t, verbs.MatchString(command) && !formats[n], "%s: a name is formatted into %q: use shellword.FormatCommand", files.Position(n.Pos()), command)
				}
				return true
			})
			return nil
		}))
	}
}

// verbs put a text into a format.
var verbs = regexp.MustCompile(`%[sqv]`)

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
