package fleet_test

import (
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(second int) *metav1.Time {
	t := metav1.NewTime(now.Add(time.Duration(second) * time.Second))
	return &t
}

func keysOf[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
