package yamlalias_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/yamlalias"
)

func TestCheck(t *testing.T) {
	long := strings.Repeat("x", 8<<10)
	for name, tt := range map[string]struct {
		text      string
		wantError string
	}{
		"nothing":                 {"", ""},
		"no anchor":               {"- cron: '0 22 * * *'\n", ""},
		"honest merge keys":       {"- &night {cron: '0 22 * * *', duration: 8h, concurrency: 4}\n" + strings.Repeat("- {<<: *night, timeZone: Europe/Berlin}\n", 31), ""},
		"an anchor in a text":     {"url: https://example.com/?a=1&b=*c\n", ""},
		"no YAML":                 {"- &a [\n", "it is not YAML: yaml: "},
		"list of lists":           {"- &a [" + strings.Repeat("1,", 6000) + "1]\n- &b [" + strings.Repeat("*a,", 60) + "*a]\n", yamlalias.ErrExpansion.Error()},
		"levels of levels":        {"- &a [1,1,1,1,1,1,1,1]\n- &b [*a,*a,*a,*a,*a,*a,*a,*a]\n- &c [*b,*b,*b,*b,*b,*b,*b,*b]\n- &d [*c,*c,*c,*c,*c,*c,*c,*c]\n- [*d,*d,*d,*d,*d,*d,*d,*d]\n", yamlalias.ErrExpansion.Error()},
		"a long text":             {"- &a " + long + "\n- [*a,*a,*a]\n", yamlalias.ErrExpansion.Error()},
		"a long key":              {"- &a {" + strings.Repeat("x", 1000) + ": 1}\n- [" + strings.Repeat("*a,", 20) + "*a]\n", yamlalias.ErrExpansion.Error()},
		"merge keys":              {"- &a {k: " + long + "}\n- {<<: *a}\n- {<<: [*a, *a]}\n", yamlalias.ErrExpansion.Error()},
		"itself":                  {"&a [*a]\n", yamlalias.ErrExpansion.Error()},
		"in the second document":  {"a: 1\n---\n- &a " + long + "\n- [*a,*a,*a]\n", yamlalias.ErrExpansion.Error()},
		"as long as it is itself": {"- &a " + strings.Repeat(long, 8) + "\n- *a\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := yamlalias.Check([]byte(tt.text))
			if tt.wantError == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, tt.wantError)
			}
		})
	}
}

// TestOverridesOfALargeFleet: a list of windows that a thousand clusters share is an honest one.
func TestOverridesOfALargeFleet(t *testing.T) {
	var text strings.Builder
	for i := range 1000 {
		windows := "*night"
		if i == 0 {
			windows = `&night [{cron: "0 22 * * *", duration: 8h, timeZone: Europe/Oslo, concurrency: 6}, {cron: "0 0 * * 6", duration: 48h, timeZone: Europe/Oslo, concurrency: 20}]`
		}
		fmt.Fprintf(&text, "- {cluster: edge-%04d, windows: %s}\n", i, windows)
	}
	require.NoError(t, yamlalias.CheckOverrides([]byte(text.String())))
	require.ErrorIs(t, yamlalias.Check([]byte(text.String())), yamlalias.ErrExpansion)
	require.ErrorIs(t, yamlalias.CheckOverrides([]byte("&a [*a]")), yamlalias.ErrExpansion)
}

// TestExpansionIsBounded: what passes never becomes more than some times as long.
func TestExpansionIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var text strings.Builder
		for i := range rapid.IntRange(1, 6).Draw(t, "anchors") {
			text.WriteString("- &a" + string(rune('0'+i)) + " [1")
			for range rapid.IntRange(0, 40).Draw(t, "elements") {
				if i > 0 && rapid.Bool().Draw(t, "alias") {
					text.WriteString(", *a" + string(rune('0'+rapid.IntRange(0, i-1).Draw(t, "of"))))
				} else {
					text.WriteString(", " + strings.Repeat("1", rapid.IntRange(1, 300).Draw(t, "digits")))
				}
			}
			text.WriteString("]\n")
		}
		if yamlalias.Check([]byte(text.String())) != nil {
			return
		}
		expanded, err := yaml.YAMLToJSON([]byte(text.String()))
		if err == nil {
			assert.LessOrEqual(t, len(expanded), 2*text.Len()+2*max(text.Len(), 16<<10))
		}
	})
}

// TestParsersCheck reads the sources: a function that parses YAML checks it first, unless it reads
// what this repository has built in.
func TestParsersCheck(t *testing.T) {
	builtIn := []string{"api/specvalidation/specvalidation.go", "api/health/permissions.go", "api/apitest/"}
	parsers := []string{"Unmarshal", "UnmarshalStrict", "YAMLToJSON", "YAMLToJSONStrict", "NewYAMLOrJSONDecoder", "NewYAMLToJSONDecoder", "NewDecoder"}
	checked := 0
	for _, folder := range []string{"agent", "api", "cli", "hub"} {
		err := filepath.WalkDir("../../"+folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			path = strings.TrimPrefix(path, "../../")
			if slices.ContainsFunc(builtIn, func(prefix string) bool { return strings.HasPrefix(path, prefix) }) {
				return nil
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), "../../"+path, nil, 0)
			if err != nil {
				return err
			}
			for _, declaration := range parsed.Decls {
				calls := calledFunctions(declaration)
				parses := slices.ContainsFunc(parsers, func(name string) bool { return calls["yaml."+name] }) || calls["clientcmd.Load"]
				if !parses || strings.HasPrefix(path, "api/yamlalias/") {
					continue
				}
				checked++
				// LoadKubeconfig refuses every alias.
				assert.True(t, calls["yamlalias.Check"] || calls["yamlalias.CheckOverrides"] || path == "api/hubclient/load_kubeconfig.go", "%s parses YAML: call yamlalias.Check first", path)
			}
			return nil
		})
		require.NoError(t, err)
	}
	assert.Greater(t, checked, 7)
}

// calledFunctions returns the functions of packages that a declaration calls, as in yaml.Unmarshal.
func calledFunctions(declaration ast.Decl) map[string]bool {
	calls := map[string]bool{}
	ast.Inspect(declaration, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if f, ok := call.Fun.(*ast.SelectorExpr); ok {
				if pkg, ok := f.X.(*ast.Ident); ok {
					calls[pkg.Name+"."+f.Sel.Name] = true
				}
			}
		}
		return true
	})
	return calls
}
