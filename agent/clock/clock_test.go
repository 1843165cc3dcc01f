package clock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestClockCountsForwardJumpsOnly uses times without a monotonic reading, as of a
// wall clock that is set.
func TestClockCountsForwardJumpsOnly(t *testing.T) {
	wall := time.Unix(1_000, 0)
	c := newClock(func() time.Time { return wall })
	for _, tt := range []struct {
		what string
		step time.Duration
		want time.Duration
	}{
		{"the clock runs", time.Second, time.Second},
		{"set forward", time.Hour, time.Hour + time.Second},
		{"set back", -2 * time.Hour, time.Hour + time.Second},
		{"the clock runs again", time.Second, time.Hour + 2*time.Second},
	} {
		wall = wall.Add(tt.step)
		assert.Equal(t, tt.want, c.Elapsed(), tt.what)
	}
}

func TestClockIsNeverBehindMonotonicClock(t *testing.T) {
	c := New()
	start := time.Now()
	for range 1000 {
		run := time.Since(start)
		assert.GreaterOrEqual(t, c.Elapsed(), run)
	}
}
