package plan_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/plan"
)

func TestPruneNonceLapses(t *testing.T) {
	now := time.Hour
	n := plan.NewPruneNonces("boot")
	assert.Empty(t, n.NonceForReport(now), "nothing is asked")
	assert.False(t, n.IsConfirmedBy("", now), "nothing was asked")
	assert.True(t, n.RequestNonce(now))
	first := n.NonceForReport(now)
	assert.True(t, n.IsConfirmedBy(first, now))
	assert.False(t, n.IsConfirmedBy("", now))
	assert.False(t, n.IsConfirmedBy("other/1", now), "of a former process")

	now += image.PruneNonceLife - 1
	assert.False(t, n.RequestNonce(now), "the answer may still come")
	assert.Equal(t, first, n.NonceForReport(now))
	assert.True(t, n.IsConfirmedBy(first, now))
	now++
	assert.False(t, n.IsConfirmedBy(first, now), "it may have ended since")
	assert.Equal(t, first, n.NonceForReport(now), "the report stays as it is")
	assert.True(t, n.RequestNonce(now))
	second := n.NonceForReport(now)
	assert.NotEqual(t, first, second)
	assert.False(t, n.IsConfirmedBy(first, now))
	assert.True(t, n.IsConfirmedBy(second, now))

	again := plan.NewPruneNonces("next boot")
	again.RequestNonce(0)
	assert.NotEqual(t, first, again.NonceForReport(0))
}

// Two answers that come late, or not at all, are told from one, and from nonces that no prune waited for.
func TestAnswersAreLate(t *testing.T) {
	n := plan.NewPruneNonces("boot")
	now, nonce := time.Hour, ""
	ask := func(after time.Duration) {
		now += after
		assert.True(t, n.RequestNonce(now))
		nonce = n.NonceForReport(now)
	}
	waitForLife := func() {
		for range 4 {
			assert.False(t, n.RequestNonce(now), "it waits")
			now += image.PruneNonceLife / 4
		}
	}
	ask(0)
	waitForLife()
	assert.False(t, n.AreAnswersLate(now), "one answer")
	ask(0)
	waitForLife()
	assert.True(t, n.AreAnswersLate(now))
	assert.False(t, n.IsConfirmedBy(nonce, now), "it comes late")
	assert.True(t, n.AreAnswersLate(now))
	ask(0)
	assert.True(t, n.AreAnswersLate(now), "the next may come in time")
	assert.True(t, n.IsConfirmedBy(nonce, now))
	assert.False(t, n.AreAnswersLate(now))

	for range 5 { // the prune is withdrawn each time
		ask(2 * image.PruneNonceLife)
		assert.False(t, n.AreAnswersLate(now))
	}
}

// However long changes are collected before a report, its answer has the nonce's whole life to come.
func TestPruneNonceLivesFromItsReport(t *testing.T) {
	for _, interval := range []time.Duration{0, image.PruneNonceLife - 1, image.PruneNonceLife, 2*image.PruneNonceLife - 1} {
		n := plan.NewPruneNonces("boot")
		now := time.Hour
		assert.True(t, n.RequestNonce(now))
		assert.False(t, n.RequestNonce(now+interval), "the report is due already")
		now += interval
		nonce := n.NonceForReport(now)
		now += image.PruneNonceLife - 1
		assert.True(t, n.IsConfirmedBy(nonce, now), interval)
		assert.False(t, n.IsConfirmedBy(nonce, now+1), interval)
	}
}
