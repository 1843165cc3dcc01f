package main

import (
	"fmt"
	"go/constant"
	"go/types"
	"reflect"
	"slices"
	"strings"
)

// encoded are types that say themselves how they are encoded.
var encoded = map[string]string{
	"encoding/json.RawMessage":                        "unknown",
	"k8s.io/apimachinery/pkg/api/resource.Quantity":   "string",
	"k8s.io/apimachinery/pkg/apis/meta/v1.Duration":   "string",
	"k8s.io/apimachinery/pkg/apis/meta/v1.MicroTime":  "string",
	"k8s.io/apimachinery/pkg/apis/meta/v1.ObjectMeta": "ObjectMeta",
	"k8s.io/apimachinery/pkg/apis/meta/v1.Time":       "string",
	"k8s.io/apimachinery/pkg/util/intstr.IntOrString": "number | string",
	"time.Time":                           "string",
	module + "/api/readapi.Values":        "(number | null)[]",
	module + "/api/v1alpha1.ActiveImport": "string",
	module + "/api/v1alpha1.QueuedImport": "string",
}

// renamed are structs whose name an answer of the read API has already.
var renamed = map[string]string{
	module + "/api/v1alpha1.MemberImages": "ImageCounts",
	module + "/api/v1alpha1.PruneReport":  "PruneReportObject",
	module + "/api/v1alpha1.Rollout":      "RolloutStrategy",
}

const header = `// Written by make generate from the Go structs. Do not edit.
// What is optional is absent where it is not known, or where there is none.

import type { ObjectMeta } from "./objectmeta";
`

// writer collects declarations by name.
type writer struct {
	loaded *loadedPackages
	// declarations by TypeScript name, and the Go type that each is of.
	declarations map[string]string
	owners       map[string]string
}

func newWriter(loaded *loadedPackages) *writer {
	return &writer{loaded: loaded, declarations: map[string]string{}, owners: map[string]string{}}
}

func (w *writer) render() (string, error) {
	names := make([]string, 0, len(w.declarations))
	for name := range w.declarations {
		names = append(names, name)
	}
	slices.Sort(names)
	var b strings.Builder
	b.WriteString(header)
	for _, name := range names {
		b.WriteString("\n" + w.declarations[name])
	}
	return b.String(), nil
}

// writePackage writes the structs of a package that have JSON fields, its enums and constants.
func (w *writer) writePackage(path string) error {
	p, err := w.loaded.importer.Import(path)
	if err != nil {
		return fmt.Errorf("reading the types of %s: %w", path, err)
	}
	for _, name := range p.Scope().Names() {
		switch object := p.Scope().Lookup(name).(type) {
		case *types.Const:
			err = w.writeConstant(object)
		case *types.TypeName:
			if named, ok := object.Type().(*types.Named); ok && object.Exported() && (hasJSON(named) || len(enumValues(named)) > 0) {
				_, err = w.typeOf(named)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) writeObject(name string) error {
	path, objectName := splitName(name)
	p, err := w.loaded.importer.Import(path)
	if err != nil {
		return fmt.Errorf("reading the types of %s: %w", path, err)
	}
	object := p.Scope().Lookup(objectName)
	if object == nil {
		return fmt.Errorf("there is no %s", name)
	}
	_, err = w.typeOf(object.Type())
	return err
}

func hasJSON(named *types.Named) bool {
	s, ok := named.Underlying().(*types.Struct)
	for i := 0; ok && i < s.NumFields(); i++ {
		if reflect.StructTag(s.Tag(i)).Get("json") != "" {
			return true
		}
	}
	return false
}

// writeConstant writes a text or a number that is of no enum. Durations are none.
func (w *writer) writeConstant(c *types.Const) error {
	named, isNamed := c.Type().(*types.Named)
	if !c.Exported() || isNamed && (len(enumValues(named)) > 0 || named.String() == "time.Duration") {
		return nil
	}
	if k := c.Val().Kind(); k != constant.String && k != constant.Int {
		return nil
	}
	return w.declare(c.Name(), c.Pkg().Path()+"."+c.Name(), fmt.Sprintf("export const %s = %s;\n", c.Name(), c.Val().ExactString()))
}

// declare adds a declaration; two Go types may not have the same name.
func (w *writer) declare(name, owner, text string) error {
	if before, taken := w.owners[name]; taken && before != owner {
		return fmt.Errorf("%s and %s have the same name in TypeScript: give one of them another in scripts/typescript", before, owner)
	}
	w.owners[name] = owner
	w.declarations[name] = comment(w.loaded.comments[owner], "") + text
	return nil
}

func comment(text, indent string) string {
	if text == "" {
		return ""
	}
	return indent + "/** " + text + " */\n"
}

// typeOf returns the TypeScript type of what a Go type is encoded as, and declares it.
func (w *writer) typeOf(t types.Type) (string, error) {
	switch t := t.(type) {
	case *types.Alias:
		return w.typeOf(types.Unalias(t))
	case *types.Pointer:
		return w.typeOf(t.Elem())
	case *types.Basic:
		return basicType(t)
	case *types.Slice:
		return w.listOf(t.Elem())
	case *types.Array:
		return w.listOf(t.Elem())
	case *types.Map:
		return w.mapOf(t)
	case *types.Interface:
		return "unknown", nil
	case *types.Named:
		return w.namedType(t)
	}
	return "", fmt.Errorf("%s cannot be written as TypeScript", t)
}

func basicType(t *types.Basic) (string, error) {
	switch {
	case t.Info()&types.IsString != 0:
		return "string", nil
	case t.Info()&types.IsBoolean != 0:
		return "boolean", nil
	case t.Info()&(types.IsInteger|types.IsFloat) != 0:
		return "number", nil
	}
	return "", fmt.Errorf("%s cannot be written as TypeScript", t)
}

// listOf returns the type of a list; bytes are in base64.
func (w *writer) listOf(element types.Type) (string, error) {
	if basic, ok := element.Underlying().(*types.Basic); ok && basic.Kind() == types.Uint8 {
		return "string", nil
	}
	text, err := w.typeOf(element)
	if strings.Contains(text, " ") {
		text = "(" + text + ")"
	}
	return text + "[]", err
}

func (w *writer) mapOf(t *types.Map) (string, error) {
	key, err := w.typeOf(t.Key())
	if err != nil {
		return "", err
	}
	value, err := w.typeOf(t.Elem())
	if key != "string" {
		return fmt.Sprintf("Partial<Record<%s, %s>>", key, value), err // an enum: not each has an entry
	}
	return fmt.Sprintf("Record<string, %s>", value), err
}

func (w *writer) namedType(t *types.Named) (string, error) {
	owner, name := t.Obj().Pkg().Path()+"."+t.Obj().Name(), t.Obj().Name()
	if text, known := encoded[owner]; known {
		return text, nil
	}
	if other, known := renamed[owner]; known {
		name = other
	}
	for _, method := range []string{"MarshalJSON", "MarshalText"} {
		if m, _, _ := types.LookupFieldOrMethod(t, true, t.Obj().Pkg(), method); m != nil {
			return "", fmt.Errorf("%s has a method %s: say in scripts/typescript what it writes", owner, method)
		}
	}
	if values := enumValues(t); len(values) > 0 {
		return name, w.declare(name, owner, fmt.Sprintf("export type %s = %s;\n", name, strings.Join(values, " | ")))
	}
	s, ok := t.Underlying().(*types.Struct)
	if !ok {
		return w.typeOf(t.Underlying())
	}
	if _, known := w.owners[name]; known && w.owners[name] == owner {
		return name, nil
	}
	if err := w.declare(name, owner, ""); err != nil { // before its fields: it may hold itself
		return "", err
	}
	fields, parents, err := w.fieldsOf(owner, s)
	if err != nil {
		return "", fmt.Errorf("%s: %w", owner, err)
	}
	extends := ""
	if len(parents) > 0 {
		extends = " extends " + strings.Join(parents, ", ")
	}
	return name, w.declare(name, owner, fmt.Sprintf("export interface %s%s {\n%s}\n", name, extends, fields))
}

// fieldsOf returns the fields of a struct, and what it extends: structs that it embeds.
func (w *writer) fieldsOf(owner string, s *types.Struct) (fields string, parents []string, err error) {
	for i := range s.NumFields() {
		field := s.Field(i)
		name, options, _ := strings.Cut(reflect.StructTag(s.Tag(i)).Get("json"), ",")
		if !field.Exported() || name == "-" {
			continue
		}
		text, err := w.typeOf(field.Type())
		if err != nil {
			return "", nil, fmt.Errorf("%s: %w", field.Name(), err)
		}
		if field.Embedded() && name == "" {
			parents = append(parents, text)
			continue
		}
		if name == "" {
			name = field.Name()
		}
		_, isPointer := field.Type().(*types.Pointer)
		optional := ""
		switch {
		case strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero"):
			optional = "?"
		case isPointer:
			text += " | null"
		}
		fields += comment(w.loaded.comments[owner+"."+field.Name()], "  ") + fmt.Sprintf("  %s%s: %s;\n", name, optional, text)
	}
	return fields, parents, nil
}

// enumValues returns the constants of a type of texts, in alphabetical order.
func enumValues(t *types.Named) (values []string) {
	if basic, ok := t.Underlying().(*types.Basic); !ok || basic.Kind() != types.String {
		return nil
	}
	scope := t.Obj().Pkg().Scope()
	for _, name := range scope.Names() {
		if c, ok := scope.Lookup(name).(*types.Const); ok && c.Exported() && types.Identical(c.Type(), t) {
			values = append(values, c.Val().ExactString())
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}
