package image_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// What was stored while the agent's clock was ahead is not waited for until the clock gets there.
func TestClockThatWasAhead(t *testing.T) {
	const year = 365 * 24 * time.Hour
	p := policyWithoutPreflight().Timeouts(time.Hour, 10*time.Minute)
	t.Run("a backoff", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), p)
		w.runFailingAttempt("unexpected EOF")
		assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
		w.advanceClock(-year)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
	})
	t.Run("an import that stalls", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), p)
		w.startImport()
		w.advanceClock(-year)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
		assert.LessOrEqual(t, w.lastDecision.RequeueAfter, 10*time.Minute)
		w.advanceClock(10 * time.Minute)
		w.reconcile()
		assert.Contains(t, w.status().Message, "nothing moved for stallTimeout, 10m0s")
	})
	t.Run("a snapshot that stalls", func(t *testing.T) {
		w := newQueuedSimulation(t, imageWithSnapshotClass(), p)
		w.runImport()
		first := w.lastSnapshot().Name
		w.advanceClock(-year)
		w.reconcile()
		w.advanceClock(10 * time.Minute)
		w.reconcile()
		assert.NotEqual(t, first, w.currentRevision().VolumeSnapshot, "the next one is made")
	})
}
