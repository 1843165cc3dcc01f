package trigger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
)

const testInterval = 100 * time.Millisecond

func newTestThrottle() *Throttle {
	return &Throttle{MinInterval: testInterval, IdleFactor: 5, MaxInterval: 5 * time.Second}
}

func TestThrottleSpacesRuns(t *testing.T) {
	throttle, now := newTestThrottle(), apitest.Epoch
	assert.Zero(t, throttle.reserve("a", now))
	assert.Zero(t, throttle.reserve("b", now), "each object has its own interval")
	assert.Equal(t, testInterval-30*time.Millisecond, throttle.reserve("a", now.Add(30*time.Millisecond)))
	assert.Zero(t, throttle.reserve("a", now.Add(testInterval)))
	throttle.recordDuration("a", 200*time.Millisecond)
	assert.Equal(t, 900*time.Millisecond, throttle.reserve("a", now.Add(2*testInterval)), "a long run is followed by a long break")
	throttle.recordDuration("a", time.Hour)
	assert.Equal(t, throttle.MaxInterval-testInterval, throttle.reserve("a", now.Add(2*testInterval)))
	assert.Zero(t, throttle.reserve("a", now.Add(-time.Hour)), "the clock was set back")
	throttle.recordDuration("unknown", time.Hour)
	assert.Zero(t, throttle.reserve("unknown", now))
	throttle.Forget("a")
	assert.Zero(t, throttle.reserve("a", now.Add(-time.Hour)))
}

func TestZeroThrottleSpacesNothing(t *testing.T) {
	var throttle Throttle
	for range 3 {
		assert.Zero(t, throttle.reserve("a", apitest.Epoch))
		throttle.recordDuration("a", time.Hour)
	}
}

// However many events arrive, an object is reconciled a few times per second, and once
// more after the last event.
func TestThrottleBatchesEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		throttle := newTestThrottle()
		now, runs := apitest.Epoch, 0
		due := time.Time{} // of a postponed run
		for range rapid.IntRange(1, 1000).Draw(t, "events") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "milliseconds")) * time.Millisecond)
			if wait := throttle.reserve("a", now); wait > 0 {
				due = now.Add(wait)
			} else {
				runs++
				due = time.Time{}
			}
		}
		assert.LessOrEqual(t, runs, 1+int(now.Sub(apitest.Epoch)/testInterval))
		if !due.IsZero() {
			assert.LessOrEqual(t, due.Sub(now), testInterval)
			assert.Zero(t, throttle.reserve("a", due), "the returned delay is enough")
		}
	})
}
