package clock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestClockCountsForwardJumpsOnly: a time without a monotonic reading is that of a wall clock which is set.
func TestClockCountsForwardJumpsOnly(t *testing.T) {
	wall := time.Unix(1_000, 0)
	c := newClock(func() time.Time { return wall })
	for _, tt := range []struct {
		what string
		step time.Duration
		want time.Duration
	}{
		{"it runs", time.Second, time.Second},
		{"put forward", time.Hour, time.Hour + time.Second},
		{"put back", -2 * time.Hour, time.Hour + time.Second},
		{"it goes on from there", time.Second, time.Hour + 2*time.Second},
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
