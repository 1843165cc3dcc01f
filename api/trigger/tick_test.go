package trigger

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestUntilTick(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		period := time.Duration(rapid.Int64Range(1, int64(time.Minute)).Draw(t, "period"))
		least := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "least"))
		began := time.Now()
		got := UntilTick(least, period)
		took := time.Since(began)
		assert.GreaterOrEqual(t, got, least)
		assert.Less(t, got, least+period)
		past := (began.Sub(processStart) + got) % period // the tick is between began and now, plus got
		assert.True(t, past == 0 || period-past <= took, "%s after a tick of %s", past, period)
	})
}

// Those that ask at different times wake together.
func TestTicksAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := time.Now().Add(UntilTick(0, time.Second))
		<-time.After(300 * time.Millisecond)
		second := time.Now().Add(UntilTick(0, time.Second))
		assert.Zero(t, second.Sub(first)%time.Second)
		assert.LessOrEqual(t, second.Sub(first), time.Second)
	})
}
