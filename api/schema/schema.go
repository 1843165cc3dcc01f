// Package schema tells whether the kinds that an API server serves are as new as the
// types of this program. Older ones do not refuse what they do not know: they drop it,
// and what was written is read back without.
package schema

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// document is what is read of an API server's OpenAPI v3 of one group and version.
type document struct {
	Components struct {
		Schemas map[string]node `json:"schemas"`
	} `json:"components"`
}

// node is a schema.
type node struct {
	Properties map[string]node `json:"properties"`
	Items      *node           `json:"items"`
	// Additional is a schema, or true or false.
	Additional json.RawMessage `json:"additionalProperties"`
	Preserves  bool            `json:"x-kubernetes-preserve-unknown-fields"`
	Kinds      []struct {
		Kind string `json:"kind"`
	} `json:"x-kubernetes-group-version-kind"`
}

// Unknown returns the fields of types that a document does not know, each by its kind
// and path. Of a kind that is not in it nothing is told: it is not served, or not yet.
func Unknown(openAPI []byte, types ...any) ([]string, error) {
	var d document
	if err := json.Unmarshal(openAPI, &d); err != nil {
		return nil, fmt.Errorf("reading the API server's schemas: %w", err)
	}
	var unknown []string
	for _, object := range types {
		t := reflect.TypeOf(object)
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		for _, served := range d.Components.Schemas {
			if len(served.Kinds) == 1 && served.Kinds[0].Kind == t.Name() {
				fields(served, t, t.Name(), &unknown)
			}
		}
	}
	slices.Sort(unknown)
	return unknown, nil
}

var marshaler = reflect.TypeFor[json.Marshaler]()

// fields adds to unknown what of a type a schema does not have.
func fields(n node, t reflect.Type, path string, unknown *[]string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	// What writes itself, as times and quantities do, is a value.
	if n.Preserves || t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler) {
		return
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		if n.Items != nil {
			fields(*n.Items, t.Elem(), path, unknown)
		}
	case reflect.Map:
		var values node
		if len(n.Additional) > 0 && json.Unmarshal(n.Additional, &values) == nil {
			fields(values, t.Elem(), path, unknown)
		}
	case reflect.Struct:
		for i := range t.NumField() {
			field := t.Field(i)
			name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			switch {
			case name == "-":
			case field.Anonymous && (name == "" || strings.Contains(options, "inline")):
				fields(n, field.Type, path, unknown)
			case name == "" || !field.IsExported() || field.Name == "ObjectMeta":
			default:
				known, is := n.Properties[name]
				if !is {
					*unknown = append(*unknown, path+"."+name)
					continue
				}
				fields(known, field.Type, path+"."+name, unknown)
			}
		}
	}
}
