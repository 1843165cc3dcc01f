package v1alpha1

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// ParseSelector is metav1.LabelSelectorAsSelector with an error that names the key, and that is the same each
// time: it is written to statuses.
func ParseSelector(s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return labels.Nothing(), nil
	}
	requirements := slices.Clone(s.MatchExpressions)
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		requirements = append(requirements, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{s.MatchLabels[key]}})
	}
	all := labels.NewSelector()
	for _, r := range requirements {
		one, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{r}})
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", r.Key, err)
		}
		parsed, _ := one.Requirements()
		all = all.Add(parsed...)
	}
	return all, nil
}
