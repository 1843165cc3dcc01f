//go:build linux

package testenv

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Consecutive runs see all points, none of them twice.
func TestSharesCoverAllPoints(t *testing.T) {
	t.Setenv(LongVariable, "")
	points := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	for _, count := range []int{1, 2, 3, len(points)} {
		for _, runs := range []int{1, turns, sweepShares} {
			var seen []int
			for run := range min(runs, count) {
				t.Setenv(SweepVariable, strconv.Itoa(99+run))
				share := shareOf(points[:count], runs)
				assert.NotEmpty(t, share)
				seen = append(seen, share...)
			}
			assert.ElementsMatch(t, points[:count], seen, "%d points in %d runs", count, runs)
		}
	}
	t.Setenv(LongVariable, "1")
	assert.Equal(t, points, SweepShare(points))
}
