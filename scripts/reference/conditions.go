package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// constant is an exported string constant; meaning is what its comment says of its value.
type constant struct{ name, value, meaning string }

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
	if err := checkMeanings(groups); err != nil {
		return "", err
	}
	var b strings.Builder
	for _, section := range []struct{ title, prefix string }{{"Conditions", "Condition"}, {"Reasons", "Reason"}} {
		fmt.Fprintf(&b, "## %s\n\n", section.title)
		for _, group := range groups {
			var rows [][]string
			for _, c := range group.constants {
				if strings.HasPrefix(c.name, section.prefix) {
					rows = append(rows, []string{"`" + c.value + "`", c.meaning})
				}
			}
			if len(rows) == 0 {
				continue
			}
			b.WriteString(group.doc + "\n\n")
			b.WriteString(table([]string{strings.TrimSuffix(section.title, "s"), "Meaning"}, rows) + "\n")
		}
	}
	return b.String(), nil
}

// checkMeanings returns an error that names each condition and reason without a meaning, or in
// a block without a heading.
func checkMeanings(groups []constantGroup) error {
	var errs []error
	for _, group := range groups {
		for _, c := range group.constants {
			switch {
			case !strings.HasPrefix(c.name, "Condition") && !strings.HasPrefix(c.name, "Reason"):
			case c.meaning == "":
				errs = append(errs, fmt.Errorf(`%s has no meaning: give it a comment "// %s: …"`, c.name, c.name))
			case group.doc == "":
				errs = append(errs, fmt.Errorf("%s has no heading: put it into a block of constants with a comment", c.name))
			}
		}
	}
	return errors.Join(errs...)
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

// trimName turns the comment of a Go name, "Name: …", into a sentence about its value. It is
// empty where the comment has another form, such as a heading of several constants.
func trimName(doc, name string) string {
	meaning, found := strings.CutPrefix(strings.Join(strings.Fields(doc), " "), name+": ")
	if !found || meaning == "" {
		return ""
	}
	return strings.ToUpper(meaning[:1]) + meaning[1:]
}
