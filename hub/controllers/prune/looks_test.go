package prune

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
)

func TestRunsAreSpacedOut(t *testing.T) {
	var l throttle
	now := apitest.Epoch
	assert.Zero(t, l.delay("a", now))
	assert.Zero(t, l.delay("b", now), "each has its own")
	assert.Equal(t, minInterval-30*time.Millisecond, l.delay("a", now.Add(30*time.Millisecond)))
	assert.Zero(t, l.delay("a", now.Add(minInterval)))
	l.recordDuration("a", 200*time.Millisecond)
	assert.Equal(t, 900*time.Millisecond, l.delay("a", now.Add(2*minInterval)), "what takes long is not done all the time")
	l.recordDuration("a", time.Hour)
	assert.Equal(t, maxInterval-minInterval, l.delay("a", now.Add(2*minInterval)))
	assert.Zero(t, l.delay("a", now.Add(-time.Hour)), "the clock was set back")
	l.recordDuration("unknown", time.Hour)
	assert.Zero(t, l.delay("unknown", now))
	l.forget("a")
	assert.Zero(t, l.delay("a", now.Add(-time.Hour)))
}

// However many members answer, an object is looked at a few times a second, and once
// more after the last of them.
func TestManyAnswersAreBatched(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l throttle
		now, looked := apitest.Epoch, 0
		due := time.Time{} // what was put off
		for range rapid.IntRange(1, 1000).Draw(t, "answers") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "milliseconds")) * time.Millisecond)
			if wait := l.delay("a", now); wait > 0 {
				due = now.Add(wait)
			} else {
				looked++
				due = time.Time{}
			}
		}
		assert.LessOrEqual(t, looked, 1+int(now.Sub(apitest.Epoch)/minInterval))
		if !due.IsZero() {
			assert.LessOrEqual(t, due.Sub(now), minInterval)
			assert.Zero(t, l.delay("a", due), "whoever waits as told gets its turn")
		}
	})
}
