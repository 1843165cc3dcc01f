package mailbox

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ServedImageFields returns those of v1alpha1.ImageFields that the API server of a member
// stores in a VMDiskImage: it drops other fields without a word, and refuses other values.
// A ClusterPlan takes every field of an image.
func ServedImageFields(openAPI []byte) ([]string, error) {
	var document openAPIDocument
	if err := json.Unmarshal(openAPI, &document); err != nil {
		return nil, fmt.Errorf("reading the API server's schemas: %w", err)
	}
	for _, served := range document.Components.Schemas {
		if len(served.Kinds) == 1 && served.Kinds[0].Kind == "VMDiskImage" {
			spec := served.Properties["spec"]
			return slices.DeleteFunc(v1alpha1.ImageFields(), func(field string) bool { return !spec.stores(field) }), nil
		}
	}
	return nil, nil
}

// ServedPlanFields returns the fields of a planned image, beside its spec, that an agent can
// follow: its VMDiskImage remembers in the status what was followed. The API server drops what
// an older CustomResourceDefinition does not have, and each reconcile would follow it again.
func ServedPlanFields(openAPI []byte) ([]string, error) {
	var document openAPIDocument
	if err := json.Unmarshal(openAPI, &document); err != nil {
		return nil, fmt.Errorf("reading the API server's schemas: %w", err)
	}
	for _, served := range document.Components.Schemas {
		if len(served.Kinds) == 1 && served.Kinds[0].Kind == "VMDiskImage" && served.Properties["status"].stores("observedPlanRetry") {
			return []string{v1alpha1.PlanFieldRetry}, nil
		}
	}
	return nil, nil
}

// stores reports whether objects of a schema can have a field, a field within it as in
// publish.name, or a field=value.
func (s openAPISchema) stores(field string) bool {
	name, value, hasValue := strings.Cut(field, "=")
	name, within, isNested := strings.Cut(name, ".")
	property, ok := s.Properties[name]
	switch {
	case !ok:
		return false
	case isNested:
		return property.stores(within)
	default:
		return !hasValue || len(property.Enum) == 0 || slices.Contains(property.Enum, any(value))
	}
}
