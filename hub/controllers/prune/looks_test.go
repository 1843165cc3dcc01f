package prune

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
)

func TestLooksAreKeptApart(t *testing.T) {
	var l looks
	now := apitest.Epoch
	assert.Zero(t, l.tooSoon("a", now))
	assert.Zero(t, l.tooSoon("b", now), "each has its own")
	assert.Equal(t, settle-30*time.Millisecond, l.tooSoon("a", now.Add(30*time.Millisecond)))
	assert.Zero(t, l.tooSoon("a", now.Add(settle)))
	l.ended("a", 200*time.Millisecond)
	assert.Equal(t, 900*time.Millisecond, l.tooSoon("a", now.Add(2*settle)), "what takes long is not done all the time")
	l.ended("a", time.Hour)
	assert.Equal(t, mostSettle-settle, l.tooSoon("a", now.Add(2*settle)))
	assert.Zero(t, l.tooSoon("a", now.Add(-time.Hour)), "the clock was set back")
	l.ended("unknown", time.Hour)
	assert.Zero(t, l.tooSoon("unknown", now))
	l.forget("a")
	assert.Zero(t, l.tooSoon("a", now.Add(-time.Hour)))
}

// However many members answer, an object is looked at a few times a second, and once
// more after the last of them.
func TestManyAnswersAreLookedAtTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l looks
		now, looked := apitest.Epoch, 0
		due := time.Time{} // what was put off
		for range rapid.IntRange(1, 1000).Draw(t, "answers") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "milliseconds")) * time.Millisecond)
			if wait := l.tooSoon("a", now); wait > 0 {
				due = now.Add(wait)
			} else {
				looked++
				due = time.Time{}
			}
		}
		assert.LessOrEqual(t, looked, 1+int(now.Sub(apitest.Epoch)/settle))
		if !due.IsZero() {
			assert.LessOrEqual(t, due.Sub(now), settle)
			assert.Zero(t, l.tooSoon("a", due), "whoever waits as told gets its turn")
		}
	})
}
