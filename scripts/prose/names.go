package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
)

// vagueVerbs are no name for a function by themselves: each needs its object.
var vagueVerbs = map[string]bool{}

func init() {
	for _, verb := range strings.Fields(`account allot answer arrive ask await beat begin blame board carry claim come doubt
		drop expire fill find follow glance go gone hold judge keep last later leave let look make meet note of open own
		pass poke refuse release retire say see serve settle shun soon stand sweep take tell think throw told turn want weigh wish word`) {
		vagueVerbs[verb] = true
	}
}

// checkNames finds functions and methods whose whole name is a vague verb.
func checkNames(file string, text []byte) (found []finding) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, text, parser.SkipObjectResolution)
	if err != nil {
		return []finding{{file, 1, err.Error()}}
	}
	for _, declaration := range parsed.Decls {
		f, ok := declaration.(*ast.FuncDecl)
		if ok && vagueVerbs[strings.ToLower(f.Name.Name)] {
			found = append(found, finding{file, files.Position(f.Name.Pos()).Line, fmt.Sprintf("func %s: say verb and object", f.Name.Name)})
		}
	}
	return found
}
