package rollout

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// placement is a parsed spec.placement.
type placement struct {
	selector        labels.Selector
	named, excluded []string // sorted
}

// parsePlacement returns an error that names the invalid field.
func parsePlacement(p *v1alpha1.Placement) (placement, error) {
	selector, err := v1alpha1.ParseSelector(p.ClusterSelector)
	if err != nil {
		return placement{}, fmt.Errorf("spec.placement.clusterSelector: %w", err)
	}
	return placement{
		selector: selector,
		named:    slices.Sorted(slices.Values(p.ClusterNames)),
		excluded: slices.Sorted(slices.Values(p.ExcludedClusters)),
	}, nil
}

func (p *placement) matches(name string, clusterLabels map[string]string) bool {
	if _, excluded := slices.BinarySearch(p.excluded, name); excluded {
		return false
	}
	if p.selector.Matches(labels.Set(clusterLabels)) {
		return true
	}
	_, named := slices.BinarySearch(p.named, name)
	return named
}

// PlacementMatcher returns a function that reports whether a placement selects a
// cluster. The error names the invalid field.
func PlacementMatcher(p *v1alpha1.Placement) (func(name string, labels map[string]string) bool, error) {
	parsed, err := parsePlacement(p)
	if err != nil {
		return nil, err
	}
	return parsed.matches, nil
}
