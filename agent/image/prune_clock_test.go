package image_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestUndoWindowIsKeptWhenClockMoves(t *testing.T) {
	w := newPendingPruneSimulation(t)
	until := w.status().Prune.Until
	w.advanceClock(-48 * time.Hour)
	w.reconcile()
	assert.Equal(t, until, w.status().Prune.Until)
	require.False(t, w.lastDecision.DeleteImage)
	w.advanceClock(49*time.Hour + time.Second)
	w.reconcile()
	assert.True(t, w.lastDecision.Pruned)
}

// It would end as soon as the clock is corrected.
func TestUndoWindowIsNotOpenedByAClockOfLongAgo(t *testing.T) {
	w := newServingSimulation(t)
	ready := w.now
	w.advanceClock(-10 * 365 * 24 * time.Hour)
	w.planPrune("prune", time.Hour)
	w.plan.Prune.UnreferencedSince = ready.Unix()
	w.reconcile()
	require.Equal(t, v1alpha1.PrunePending, w.status().Prune.State)
	assert.LessOrEqual(t, w.lastDecision.RequeueAfter, time.Hour, "the clock may be corrected at any time")
	w.advanceClock(ready.Sub(w.now) + 59*time.Minute)
	w.reconcile()
	require.False(t, w.lastDecision.DeleteImage)
	w.advanceClock(time.Hour)
	w.reconcile()
	assert.True(t, w.lastDecision.Pruned)
}

// An image that expires, and has a prune as well, is deleted when the first of both is due.
func TestExpiryDoesNotWaitForUndoWindow(t *testing.T) {
	w := newPendingPruneSimulation(t)
	until := w.status().Prune.Until.Time
	w.advanceClock(until.Sub(w.now) + time.Minute)
	w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.DeleteUnreferencedAfter = &metav1.Duration{Duration: time.Second} })
	w.clockAhead = 10 * time.Minute
	w.reconcile()
	assert.True(t, w.lastDecision.DeleteImage)
	assert.False(t, w.lastDecision.Pruned)
	assert.False(t, w.lastDecision.AwaitsServerClock)
	assert.True(t, w.lastDecision.DeleteNotBefore.Before(until))
}
