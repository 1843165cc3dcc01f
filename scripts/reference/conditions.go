package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// constant is an exported string constant with its comment.
type constant struct{ name, value, doc string }

// constantGroup is a block of constants with the comment that it stands under.
type constantGroup struct {
	doc       string
	constants []constant
}

func renderConditions() (string, error) {
	groups, err := readConstants(filepath.Join("api", "v1alpha1"))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, section := range []struct{ title, prefix string }{{"Conditions", "Condition"}, {"Reasons", "Reason"}} {
		fmt.Fprintf(&b, "## %s\n\n", section.title)
		for _, group := range groups {
			var rows [][]string
			for _, c := range group.constants {
				if strings.HasPrefix(c.name, section.prefix) {
					rows = append(rows, []string{"`" + c.value + "`", c.doc})
				}
			}
			if len(rows) == 0 {
				continue
			}
			if group.doc != "" {
				b.WriteString(group.doc + "\n\n")
			}
			b.WriteString(table([]string{strings.TrimSuffix(section.title, "s"), "Meaning"}, rows) + "\n")
		}
	}
	return b.String(), nil
}

// readConstants returns the blocks of constants of a package that hold conditions or
// reasons, in the order of files and lines.
func readConstants(directory string) (groups []constantGroup, err error) {
	files, err := filepath.Glob(filepath.Join(directory, "*.go"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, declaration := range parsed.Decls {
			if block, ok := declaration.(*ast.GenDecl); ok && block.Tok == token.CONST {
				groups = append(groups, readGroup(block))
			}
		}
	}
	return groups, nil
}

func readGroup(block *ast.GenDecl) (group constantGroup) {
	if block.Lparen.IsValid() {
		group.doc = strings.TrimSpace(block.Doc.Text())
	}
	for _, spec := range block.Specs {
		value, ok := spec.(*ast.ValueSpec)
		if !ok || len(value.Values) != 1 {
			continue
		}
		literal, ok := value.Values[0].(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			continue
		}
		text, err := strconv.Unquote(literal.Value)
		if err != nil {
			continue
		}
		doc := value.Doc
		if doc == nil && !block.Lparen.IsValid() {
			doc = block.Doc
		}
		if doc == nil {
			doc = value.Comment
		}
		name := value.Names[0].Name
		group.constants = append(group.constants, constant{name, text, trimName(doc.Text(), name)})
	}
	return group
}

// trimName turns the comment of a Go name into a sentence about its value.
func trimName(doc, name string) string {
	text := strings.Join(strings.Fields(doc), " ")
	for _, separator := range []string{": ", " means that ", " means ", " is "} {
		if rest, ok := strings.CutPrefix(text, name+separator); ok {
			return strings.ToUpper(rest[:1]) + rest[1:]
		}
	}
	return text
}
