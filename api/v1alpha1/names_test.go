package v1alpha1_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/names.golden as the tree is now")

const (
	root   = "../.."
	golden = "testdata/names.golden"
)

// TestNamesOfStoredAndServedThingsStay compares everything that is stored in clusters
// or read by machines with testdata/names.golden. Such a name may be used in clusters,
// dashboards and scripts: it changes only with an alias for one minor version and a line
// in CHANGELOG.md. Add a new name with
//
//	go test ./api/v1alpha1 -run Names -rewrite
func TestNamesOfStoredAndServedThingsStay(t *testing.T) {
	source := parseSource(t)
	sections := []struct {
		title string
		names []string
	}{
		{"kinds and fields", collectFields(t)},
		{"constants of api", collectAPIConstants(source)},
		{"reasons, conditions, phases and kinds in the code", collectIdentifiers(source)},
		{"labels, annotations, finalizers and objects", collectObjectNames(source)},
		{"controllers", collectArguments(source, "Named")},
		{"field owners", collectArguments(source, "FieldOwner")},
		{"flags", collectFlags(source)},
		{"words of metrics", collectMetricWords(source)},
		{"metrics in dashboards and alerts", collectChartMetrics(t)},
		{"objects of the charts", collectChartObjects(t)},
		{"values of the charts", collectChartValues(t)},
	}
	var text strings.Builder
	for _, s := range sections {
		if len(s.names) == 0 {
			t.Errorf("nothing found of: %s", s.title)
		}
		fmt.Fprintf(&text, "# %s\n%s\n\n", s.title, strings.Join(s.names, "\n"))
	}
	if *rewrite {
		if err := os.WriteFile(golden, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(text.String(), "\n")); diff != "" {
		t.Errorf("names that are stored in clusters or read by machines have changed (-golden +tree):\n%s", diff)
	}
}

// sourceFile is one file of the product, without its tests.
type sourceFile struct {
	program string // agent, hub or api
	dir     string
	file    *ast.File
}

func parseSource(t *testing.T) []sourceFile {
	t.Helper()
	var files []sourceFile
	set := token.NewFileSet()
	for _, program := range []string{"agent", "api", "hub"} {
		err := filepath.WalkDir(filepath.Join(root, program), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				if err == nil && (d.Name() == "testdata" || d.Name() == "apitest") {
					return fs.SkipDir
				}
				return err
			}
			if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(d.Name(), "zz_generated") {
				return nil
			}
			file, err := parser.ParseFile(set, path, nil, 0)
			files = append(files, sourceFile{program: program, dir: filepath.Dir(path), file: file})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// set collects names, each once, in their order.
type set map[string]bool

func (s set) add(name string) { s[name] = true }

func (s set) sorted() []string { return slices.Sorted(maps.Keys(s)) }

func stringLiteral(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}

// visitLiterals calls visit with every string literal of a file, tags of fields and imports
// left out.
func visitLiterals(f *ast.File, visit func(string)) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.CallExpr:
			// Log messages are for people.
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && (f.Sel.Name == "Info" || f.Sel.Name == "Error") {
				return false
			}
		case *ast.Field:
			return n.Tag == nil
		case *ast.BasicLit:
			if text, ok := stringLiteral(n); ok {
				visit(text)
			}
		}
		return true
	})
}

var (
	word       = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`)
	identifier = regexp.MustCompile(`^[A-Z][a-z]+[A-Za-z0-9]*$|^[A-Z]{2,}[a-z][A-Za-z0-9]*$`)
	objectName = regexp.MustCompile(`^[A-Za-z0-9.%/-]*(pelotech\.ot|\bot-|sync-operator|app\.kubernetes\.io)[A-Za-z0-9.%/_-]*$`)
	metricWord = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*_?$`)
	metricName = regexp.MustCompile(`\bot_(agent|hub)_[a-z_]+\b`)
	objectKind = regexp.MustCompile(`^kind: (\w+)`)
	chartName  = regexp.MustCompile(`^  name: (.+)`)
)

func collectAPIConstants(files []sourceFile) []string {
	found := set{}
	for _, f := range files {
		if f.program != "api" {
			continue
		}
		ast.Inspect(f.file, func(n ast.Node) bool {
			if d, ok := n.(*ast.GenDecl); !ok || d.Tok != token.CONST {
				return true
			}
			for _, spec := range n.(*ast.GenDecl).Specs {
				for _, v := range spec.(*ast.ValueSpec).Values {
					if text, ok := stringLiteral(v); ok && word.MatchString(text) {
						found.add(text)
					}
				}
			}
			return false
		})
	}
	return found.sorted()
}

func collectIdentifiers(files []sourceFile) []string {
	found := set{}
	for _, f := range files {
		visitLiterals(f.file, func(text string) {
			if identifier.MatchString(text) {
				found.add(text)
			}
		})
	}
	return found.sorted()
}

func collectObjectNames(files []sourceFile) []string {
	found := set{}
	for _, f := range files {
		visitLiterals(f.file, func(text string) {
			if objectName.MatchString(text) {
				found.add(strings.TrimSuffix(text, "/"))
			}
		})
	}
	return found.sorted()
}

// collectArguments returns the first arguments of calls of a function or method, where
// they are literals.
func collectArguments(files []sourceFile, function string) []string {
	found := set{}
	for _, f := range files {
		ast.Inspect(f.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			if selector, ok := call.Fun.(*ast.SelectorExpr); ok && selector.Sel.Name == function {
				if text, ok := stringLiteral(call.Args[0]); ok {
					found.add(f.program + " " + text)
				}
			}
			return true
		})
	}
	return found.sorted()
}

func collectFlags(files []sourceFile) []string {
	found := set{}
	for _, f := range files {
		ast.Inspect(f.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			selector, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := selector.X.(*ast.Ident); !ok || x.Name != "flag" && x.Name != "flags" {
				return true
			}
			for _, argument := range call.Args {
				text, ok := stringLiteral(argument)
				if !ok {
					continue
				}
				if f.program == "api" {
					// Both programs have the flags of api/startup.
					found.add("agent --" + text)
					found.add("hub --" + text)
				} else {
					found.add(f.program + " --" + text)
				}
				break
			}
			return true
		})
	}
	return found.sorted()
}

// collectMetricWords returns the parts that names and labels of metrics are made of.
func collectMetricWords(files []sourceFile) []string {
	found := set{}
	for _, f := range files {
		if filepath.Base(f.dir) != "metrics" {
			continue
		}
		visitLiterals(f.file, func(text string) {
			if text := strings.TrimPrefix(text, "_"); metricWord.MatchString(text) {
				found.add(f.program + " " + text)
			}
		})
	}
	return found.sorted()
}

func chartFiles(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "charts", pattern))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no file is charts/%s: %v", pattern, err)
	}
	return paths
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path) //nolint:gosec // a file of this repository
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func chartOf(path string) string {
	parts := strings.Split(filepath.ToSlash(path), "/")
	return parts[slices.Index(parts, "charts")+1]
}

func collectChartMetrics(t *testing.T) []string {
	found := set{}
	for _, pattern := range []string{"*/monitoring/*.yaml", "*/monitoring/*.json"} {
		for _, path := range chartFiles(t, pattern) {
			for _, name := range metricName.FindAllString(readFile(t, path), -1) {
				found.add(name)
			}
		}
	}
	return found.sorted()
}

func collectChartObjects(t *testing.T) []string {
	found := set{}
	for _, path := range chartFiles(t, "*/templates/*.yaml") {
		kind := ""
		for line := range strings.Lines(readFile(t, path)) {
			if m := objectKind.FindStringSubmatch(line); m != nil {
				kind = m[1]
			} else if m := chartName.FindStringSubmatch(line); m != nil && kind != "" {
				// The name is the same with and without quotes.
				found.add(chartOf(path) + " " + kind + " " + strings.Replace(strings.TrimSpace(m[1]), " | quote }}", " }}", 1))
				kind = ""
			}
		}
	}
	return found.sorted()
}

func collectChartValues(t *testing.T) []string {
	found := set{}
	for _, path := range chartFiles(t, "*/values.yaml") {
		var values map[string]any
		if err := yaml.Unmarshal([]byte(readFile(t, path)), &values); err != nil {
			t.Fatal(err)
		}
		addValues(found, chartOf(path)+" ", values)
	}
	return found.sorted()
}

func addValues(found set, prefix string, values map[string]any) {
	for key, value := range values {
		found.add(prefix + key)
		if inner, ok := value.(map[string]any); ok {
			addValues(found, prefix+key+".", inner)
		}
	}
}

func collectFields(t *testing.T) []string {
	found := set{}
	for _, pattern := range []string{"*/files/crds/*.yaml", "*/files/mailbox/*.yaml"} {
		for _, path := range chartFiles(t, pattern) {
			var crd apiextensionsv1.CustomResourceDefinition
			if err := yaml.UnmarshalStrict([]byte(readFile(t, path)), &crd); err != nil {
				t.Fatal(err)
			}
			names := crd.Spec.Names
			for _, v := range crd.Spec.Versions {
				kind := fmt.Sprintf("%s/%s %s", crd.Spec.Group, v.Name, names.Kind)
				found.add(fmt.Sprintf("%s: %s, plural %s, short %v, categories %v, status %v",
					kind, crd.Spec.Scope, names.Plural, names.ShortNames, names.Categories, v.Subresources != nil && v.Subresources.Status != nil))
				for _, column := range v.AdditionalPrinterColumns {
					found.add(fmt.Sprintf("%s: column %s %s", kind, column.Name, column.JSONPath))
				}
				addFields(found, kind+" ", v.Schema.OpenAPIV3Schema)
			}
		}
	}
	return found.sorted()
}

func addFields(found set, path string, s *apiextensionsv1.JSONSchemaProps) {
	for name, field := range s.Properties {
		line := path + name + " " + field.Type
		for _, value := range field.Enum {
			line += " " + string(value.Raw)
		}
		if field.Default != nil {
			line += " default " + string(field.Default.Raw)
		}
		found.add(line)
		addFields(found, path+name+".", &field)
	}
	if s.Items != nil && s.Items.Schema != nil {
		addFields(found, strings.TrimSuffix(path, ".")+"[].", s.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		addFields(found, path+"*.", s.AdditionalProperties.Schema)
	}
}
