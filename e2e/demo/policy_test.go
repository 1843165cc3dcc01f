//go:build linux

package main

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/hub/policy"
)

// The story goes on at any time of the day: lab has a window, and no cluster is ever paused.
func TestPolicyAtAnyTime(t *testing.T) {
	for _, normalAndEdge := range [][2]int{{firstBudget, firstEdge}, {raisedBudget, raisedEdge}} {
		p, unknown, errs := policy.ParsePolicy(newPolicy(normalAndEdge[0], normalAndEdge[1]))
		require.Empty(t, errs)
		require.Empty(t, unknown)
		for name, tt := range map[string]struct {
			labels map[string]string
			want   []int64
		}{
			bergen: {nil, []int64{int64(normalAndEdge[0])}},
			edge:   {map[string]string{"edge": "true"}, []int64{int64(normalAndEdge[1])}},
			lab:    {nil, []int64{labBudget, labNightBudget}},
		} {
			data, _, errs := p.ForMember(name, tt.labels)
			require.Empty(t, errs)
			budgets := map[int64]bool{}
			for hour := range 24 {
				budgets[policy.ConcurrencyAt(data, time.Date(2026, 11, 26, hour, 30, 0, 0, time.UTC))] = true
			}
			require.Equal(t, tt.want, slices.Sorted(maps.Keys(budgets)), name)
		}
	}
}
