package kubevirt

import (
	"fmt"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Limits of an overlay. KubeVirt's types nest less deeply than maxOverlayDepth, and a decoded object
// takes up to a hundred times the memory of its text. A CRD can bound neither: the API server hides
// unknown fields from its rules.
const (
	maxOverlayBytes = 64 << 10
	maxOverlayDepth = 64
)

// decodeOverlay returns the overlay of a machine; nil for none. Invariant: the text is within the limits
// before anything is allocated for it, since any author may store one of 1 MiB.
func decodeOverlay(vm *v1alpha1.VirtualMachine) (overlay map[string]any, err error) {
	if vm.Spec.Overlay == nil || len(vm.Spec.Overlay.Raw) == 0 {
		return nil, nil
	}
	raw := vm.Spec.Overlay.Raw
	if len(raw) > maxOverlayBytes {
		return nil, fmt.Errorf("%w has %d bytes, and at most %d are allowed: move data into Secrets, ConfigMaps or spec.cloudInit", errOverlay, len(raw), maxOverlayBytes)
	}
	if exceedsDepth(raw, maxOverlayDepth) {
		return nil, fmt.Errorf("%w has more than %d levels of objects and lists: no KubeVirt VirtualMachine has so many", errOverlay, maxOverlayDepth)
	}
	if err := utiljson.Unmarshal(raw, &overlay); err != nil {
		return nil, fmt.Errorf("%w must be an object with fields of spec of a KubeVirt VirtualMachine: %w", errOverlay, err)
	}
	return overlay, nil
}

// exceedsDepth reports whether objects and lists of a JSON text are nested more deeply than limit.
func exceedsDepth(text []byte, limit int) bool {
	depth, inString := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > limit {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}
