package render_test

import (
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

	"github.com/pelotech/ot-fleet/cli/render"
)

// TestViewsHaveNames reads the sources: -o name of a verb with effects, or with a verdict, must not
// fail once it has done its work. Views without names read, and are not about single objects.
func TestViewsHaveNames(t *testing.T) {
	wantNone := []string{"events.Events", "fleetpolicy.Show", "join.Acceptance", "status.Status", "top.Top", "versions.Versions"}
	methods := map[string][]string{}
	forEachMethod(t, func(_ string, parsed *ast.File, f *ast.FuncDecl) {
		receiver := parsed.Name.Name + "." + typeName(f.Recv.List[0].Type)
		methods[receiver] = append(methods[receiver], f.Name.Name)
	})
	var without []string
	for view, names := range methods {
		if slices.Contains(names, "Draw") && !slices.Contains(names, "Names") {
			without = append(without, view)
		}
	}
	slices.Sort(without)
	assert.Equal(t, wantNone, without)
}

// forEachMethod calls do with each method of the module, beside those of tests.
func forEachMethod(t *testing.T, do func(path string, parsed *ast.File, f *ast.FuncDecl)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		for _, declaration := range parsed.Decls {
			if f, ok := declaration.(*ast.FuncDecl); ok && f.Recv != nil {
				do(path, parsed, f)
			}
		}
		return nil
	}))
}

// typeName returns the name of a receiver's type.
func typeName(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.StarExpr:
		return typeName(x.X)
	case *ast.IndexExpr:
		return typeName(x.X)
	case *ast.Ident:
		return x.Name
	default:
		return ""
	}
}

// TestNamesAreReferences reads the sources: scripts compare what -o name of one verb prints with what
// another does, so that all objects of OT Fleet are named by Reference.
func TestNamesAreReferences(t *testing.T) {
	notObjects := []string{"/", "'/'", "check/%s", "file/", "image/"}
	forEachMethod(t, func(path string, _ *ast.File, f *ast.FuncDecl) {
		if f.Name.Name != "Names" && f.Name.Name != "reference" {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && strings.Contains(literal.Value, "/") {
				assert.Contains(t, notObjects, strings.Trim(literal.Value, `"`), "%s: use render.Reference", path)
			}
			return true
		})
	})
	assert.Equal(t, "membercluster.pelotech.ot/lab", render.Reference("MemberCluster", "lab"))
}
