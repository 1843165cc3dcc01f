package mailbox

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

// DroppedFields compares an object that was sent to an API server with what the API
// server stored, and returns the fields that are missing there, as Kind.path. It
// ignores fields with another value and metadata.
func DroppedFields(kind string, sent, stored runtime.Object) ([]string, error) {
	var content [2]map[string]any
	for i, object := range []runtime.Object{sent, stored} {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, fmt.Errorf("comparing the sent %s with the stored one: %w", kind, err)
		}
		for _, key := range []string{"metadata", "apiVersion", "kind"} {
			delete(fields, key)
		}
		content[i] = fields
	}
	found := map[string]bool{}
	addDroppedFields(content[0], content[1], kind, found)
	return slices.Sorted(maps.Keys(found)), nil
}

// addDroppedFields reports each field of list items once.
func addDroppedFields(sent, stored any, path string, found map[string]bool) {
	switch sent := sent.(type) {
	case map[string]any:
		stored, _ := stored.(map[string]any)
		for name, value := range sent {
			if storedValue, ok := stored[name]; ok {
				addDroppedFields(value, storedValue, path+"."+name, found)
			} else {
				found[path+"."+name] = true
			}
		}
	case []any:
		stored, _ := stored.([]any)
		for i := range min(len(sent), len(stored)) {
			addDroppedFields(sent[i], stored[i], path, found)
		}
	}
}
