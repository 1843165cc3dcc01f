package mailbox

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// openAPIDocument is the part of an API server's OpenAPI v3 document that is read.
type openAPIDocument struct {
	Components struct {
		Schemas map[string]openAPISchema `json:"schemas"`
	} `json:"components"`
}

// openAPISchema is one schema of the document.
type openAPISchema struct {
	Properties map[string]openAPISchema `json:"properties"`
	Items      *openAPISchema           `json:"items"`
	Enum       []any                    `json:"enum"`
	// AdditionalProperties is a schema, true or false.
	AdditionalProperties   json.RawMessage `json:"additionalProperties"`
	PreservesUnknownFields bool            `json:"x-kubernetes-preserve-unknown-fields"`
	Kinds                  []struct {
		Kind string `json:"kind"`
	} `json:"x-kubernetes-group-version-kind"`
}

// UnknownFields returns the fields of types that the document does not have, as
// Kind.path. Kinds that the document does not have at all are skipped: they are not
// served, or not yet.
func UnknownFields(openAPI []byte, types ...any) ([]string, error) {
	var document openAPIDocument
	if err := json.Unmarshal(openAPI, &document); err != nil {
		return nil, fmt.Errorf("reading the API server's schemas: %w", err)
	}
	var unknown []string
	for _, object := range types {
		t := reflect.TypeOf(object)
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		for _, served := range document.Components.Schemas {
			if len(served.Kinds) == 1 && served.Kinds[0].Kind == t.Name() {
				addUnknownFields(served, t, t.Name(), &unknown)
			}
		}
	}
	slices.Sort(unknown)
	return unknown, nil
}

var marshalerType = reflect.TypeFor[json.Marshaler]()

// addUnknownFields collects the fields of a type that a schema does not have.
func addUnknownFields(schema openAPISchema, t reflect.Type, path string, unknown *[]string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	// A type with its own encoding, such as metav1.Time, is a single value.
	if schema.PreservesUnknownFields || t.Implements(marshalerType) || reflect.PointerTo(t).Implements(marshalerType) {
		return
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		if schema.Items != nil {
			addUnknownFields(*schema.Items, t.Elem(), path, unknown)
		}
	case reflect.Map:
		var values openAPISchema
		if len(schema.AdditionalProperties) > 0 && json.Unmarshal(schema.AdditionalProperties, &values) == nil {
			addUnknownFields(values, t.Elem(), path, unknown)
		}
	case reflect.Struct:
		for i := range t.NumField() {
			field := t.Field(i)
			name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			switch {
			case name == "-":
			case field.Anonymous && (name == "" || strings.Contains(options, "inline")):
				addUnknownFields(schema, field.Type, path, unknown)
			case name == "" || !field.IsExported() || field.Name == "ObjectMeta":
			default:
				known, ok := schema.Properties[name]
				if !ok {
					*unknown = append(*unknown, path+"."+name)
					continue
				}
				addUnknownFields(known, field.Type, path+"."+name, unknown)
			}
		}
	}
}
