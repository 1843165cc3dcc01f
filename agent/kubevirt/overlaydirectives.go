package kubevirt

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// patchDirective is the key of a directive, as in a strategic merge patch. A client-side
// kubectl apply drops nulls, and keeps this.
const (
	patchDirective = "$patch"
	patchDelete    = "delete"
)

// removes reports whether a value of the overlay removes the field or item in its place.
func removes(value any) bool {
	if value == nil {
		return true
	}
	m, _ := value.(map[string]any)
	return m[patchDirective] == patchDelete
}

// overlayPath is a place in an overlay. It is joined for errors only: each place has but its own key.
type overlayPath struct {
	parent *overlayPath
	key    string
}

func (p *overlayPath) String() string {
	if p.parent == nil {
		return p.key
	}
	return p.parent.String() + p.key
}

// checkDirectives refuses directives that would be merged as fields, or do less than they say.
func checkDirectives(value any, path *overlayPath, inNamedItem bool) error {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			if !strings.HasPrefix(key, "$") {
				if err := checkDirectives(value[key], &overlayPath{path, "." + key}, false); err != nil {
					return err
				}
				continue
			}
			if key != patchDirective || value[key] != patchDelete {
				return fmt.Errorf("%w has %s: %v at %s: the only directive is $patch: delete, which removes the field, or the list item with that name", errOverlay, key, value[key], path)
			}
			if path.parent == nil {
				return fmt.Errorf("%w must not remove the whole spec: give $patch: delete in the place of a field in it", errOverlay)
			}
			if left := len(value) - 1; left > 1 || (left == 1 && (!inNamedItem || itemName(value) == "")) {
				return fmt.Errorf("%w has other fields beside $patch: delete at %s: remove them, or the directive", errOverlay, path)
			}
		}
	case []any:
		for i, item := range value {
			at := &overlayPath{path, "[" + strconv.Itoa(i) + "]"}
			if removes(item) && itemName(item) == "" {
				return fmt.Errorf("%w removes an item without a name at %s: give its name, or the whole list without it", errOverlay, at)
			}
			if err := checkDirectives(item, at, true); err != nil {
				return err
			}
		}
	}
	return nil
}
