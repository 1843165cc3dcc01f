package clock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAgesSurviveWallClockChanges(t *testing.T) {
	wall, ran := time.Unix(10_000, 0), time.Duration(0)
	a := NewAgeTracker(func() time.Duration { return ran })
	a.wallClock = func() time.Time { return wall }
	started := wall.Add(-time.Minute)
	assert.Equal(t, time.Minute, a.AgeOf("a", started))
	a.TrackOnly(map[string]time.Time{"a": started, "later": wall.Add(time.Hour)})
	for _, tt := range []struct {
		what       string
		step, runs time.Duration
		want       time.Duration
	}{
		{"both clocks run", time.Second, time.Second, time.Minute + time.Second},
		{"the wall clock is set back", -time.Hour, 0, time.Minute + time.Second},
		{"both clocks run again", time.Second, time.Second, time.Minute + 2*time.Second},
		{"the wall clock is set forward", 2 * time.Hour, 0, time.Hour + time.Minute + 2*time.Second},
	} {
		wall, ran = wall.Add(tt.step), ran+tt.runs
		assert.Equal(t, tt.want, a.AgeOf("a", started), tt.what)
		a.TrackOnly(map[string]time.Time{"a": started, "later": time.Unix(10_000, 0).Add(time.Hour)})
	}
	assert.Equal(t, 2*time.Second, a.AgeOf("later", wall), "a thing that seems to start later is as old as its observation")
	a.TrackOnly(nil)
	assert.Equal(t, time.Second, a.AgeOf("a", wall.Add(-time.Second)), "untracked things are forgotten")

	var none *AgeTracker
	none.TrackOnly(map[string]time.Time{"a": started})
	assert.Positive(t, none.AgeOf("a", time.Now().Add(-time.Second)))
}
