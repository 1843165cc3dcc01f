package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// loadedPackages are packages with their types, and the comments of this module's.
type loadedPackages struct {
	importer types.Importer
	// folders by package path, of this module.
	folders map[string]string
	// comments by "path.Type", "path.Type.Field" and "path.Constant".
	comments map[string]string
}

// loadPackages reads the types from what the compiler exports, which Go's build cache has.
func loadPackages(paths, objects []string) (*loadedPackages, error) {
	arguments := append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}\t{{.Dir}}"}, paths...)
	for _, name := range objects {
		path, _ := splitName(name)
		arguments = append(arguments, path)
	}
	out, err := exec.Command("go", arguments...).Output()
	if err != nil {
		if failed, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, failed.Stderr)
		}
		return nil, fmt.Errorf("building packages: %w", err)
	}
	l := &loadedPackages{folders: map[string]string{}, comments: map[string]string{}}
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		exports[fields[0]] = fields[1]
		if strings.HasPrefix(fields[0], module+"/") {
			l.folders[fields[0]] = fields[2]
		}
	}
	l.importer = importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for path, folder := range l.folders {
		// Each by itself: of one that only another needs, the constants are missing.
		if _, err := l.importer.Import(path); err != nil {
			return nil, fmt.Errorf("reading the types of %s: %w", path, err)
		}
		if err := l.readComments(path, folder); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// splitName splits "path.Type".
func splitName(name string) (path, object string) {
	at := strings.LastIndex(name, ".")
	return name[:at], name[at+1:]
}

func (l *loadedPackages) readComments(path, folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("reading the sources of %s: %w", path, err)
	}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".go") || strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), folder+"/"+entry.Name(), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("reading the comments of %s: %w", path, err)
		}
		for _, declaration := range file.Decls {
			if block, ok := declaration.(*ast.GenDecl); ok {
				l.addComments(path, block)
			}
		}
	}
	return nil
}

func (l *loadedPackages) addComments(path string, block *ast.GenDecl) {
	for _, spec := range block.Specs {
		switch spec := spec.(type) {
		case *ast.ValueSpec:
			for _, name := range spec.Names {
				l.comments[path+"."+name.Name] = firstSentence(spec.Doc)
			}
		case *ast.TypeSpec:
			name, doc := path+"."+spec.Name.Name, spec.Doc
			if doc == nil {
				doc = block.Doc
			}
			l.comments[name] = firstSentence(doc)
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, field := range s.Fields.List {
					for _, fieldName := range field.Names {
						l.comments[name+"."+fieldName.Name] = firstSentence(field.Doc)
					}
				}
			}
		}
	}
}

// firstSentence returns the first sentence of a comment, without markers for other generators.
func firstSentence(comment *ast.CommentGroup) string {
	if comment == nil {
		return ""
	}
	lines := slices.DeleteFunc(strings.Split(comment.Text(), "\n"), func(line string) bool { return strings.HasPrefix(line, "+") })
	paragraph, _, _ := strings.Cut(strings.TrimSpace(strings.Join(lines, "\n")), "\n\n")
	text := strings.Join(strings.Fields(paragraph), " ")
	if before, _, found := strings.Cut(text, ". "); found {
		text = before + "."
	}
	return strings.ReplaceAll(text, "*/", "*\u200b/")
}
