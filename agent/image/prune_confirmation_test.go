package image_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestUnconfirmedPruneDoesNotBegin(t *testing.T) {
	for name, window := range map[string]time.Duration{"with a window": time.Hour, "without": 0} {
		t.Run(name, func(t *testing.T) {
			w := newServingSimulation(t)
			w.planPrune("prune", window)
			w.plan.PruneUnconfirmed = true
			w.reconcile()
			assert.Nil(t, w.status().Prune)
			assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
			assert.True(t, w.lastDecision.AskPruneConfirmed)
			assert.Equal(t, time.Minute, w.lastDecision.RequeueAfter, "it asks again where no hub answers")

			w.plan.PruneUnconfirmed = false
			w.reconcile()
			require.NotNil(t, w.status().Prune)
			assert.Equal(t, v1alpha1.PrunePending, w.status().Prune.State)
			assert.False(t, w.lastDecision.AskPruneConfirmed)
		})
	}
}

// A prune that has begun goes on, and one that does not begin at all is answered, whatever is confirmed.
func TestUnconfirmedPruneEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		change    func(*simulation)
		wantState v1alpha1.PruneState
	}{
		"it is undone":       {func(w *simulation) { w.plan.Prune.Undo = true }, v1alpha1.PruneUndone},
		"a VM references it": {func(w *simulation) { w.setHolders("ns/vm") }, v1alpha1.PruneSkipped},
		"its source changes": {func(w *simulation) { w.setURL(urlB) }, v1alpha1.PruneSkipped},
	} {
		t.Run(name, func(t *testing.T) {
			w := newServingSimulation(t)
			w.planPrune("prune", time.Hour)
			w.plan.PruneUnconfirmed = true
			tt.change(w)
			w.reconcile()
			require.NotNil(t, w.status().Prune)
			assert.Equal(t, tt.wantState, w.status().Prune.State)
			assert.False(t, w.lastDecision.AskPruneConfirmed)
		})
	}
	t.Run("its window ends", func(t *testing.T) {
		w := newPendingPruneSimulation(t)
		w.plan.PruneUnconfirmed = true
		w.reconcile()
		assert.Equal(t, v1alpha1.PrunePending, w.status().Prune.State)
		assert.False(t, w.lastDecision.AskPruneConfirmed)
		w.advanceClock(2 * time.Hour)
		w.reconcile()
		assert.True(t, w.lastDecision.Pruned)
	})
}
