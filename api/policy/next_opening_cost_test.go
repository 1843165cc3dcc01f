package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestNextOpeningSearchesNoYears: the agent asks at each step of its ledger. Both durations are
// measured here, one after the other, and each is the shortest of several.
func TestNextOpeningSearchesNoYears(t *testing.T) {
	p := Default()
	p.Concurrency = 0
	for range MaxWindows {
		p.Windows = append(p.Windows, window("0 22 * * *", 8*time.Hour, "Europe/Berlin", 4))
	}
	midnight := at("2026-06-01T00:00:00Z")
	shortest := func(run func()) time.Duration {
		best := time.Hour
		for range 5 {
			start := time.Now()
			run()
			best = min(best, time.Since(start))
		}
		return best
	}
	now := shortest(func() { CombineAt(&p, nil, midnight) })
	next := shortest(func() {
		_, found := NextOpening(&p, nil, midnight)
		assert.False(t, found)
	})
	assert.Less(t, next, 50*now)
}
