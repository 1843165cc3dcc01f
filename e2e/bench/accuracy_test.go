//go:build linux

package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Played time: the same seed gives the same journal on any machine.
func TestExpectedTimesAreAccurate(t *testing.T) {
	got := accuracyRun{imports: 120, budget: 4, seed: 3}.play()
	t.Logf("%+v", got)
	assert.Greater(t, got.entries, 1000)
	assert.LessOrEqual(t, got.medianError, maxMedianError)
	assert.GreaterOrEqual(t, got.rangeHolds, minRangeHolds)
	assert.Equal(t, got, accuracyRun{imports: 120, budget: 4, seed: 3}.play())
}
