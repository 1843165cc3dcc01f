package image_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
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

// Where the hub's answers are late, the status says what the prune waits for.
func TestUnconfirmedPruneSaysWhatItWaitsFor(t *testing.T) {
	late := func(t *testing.T) *simulation {
		w := newServingSimulation(t)
		w.planPrune("former", time.Hour)
		w.plan.Prune.Undo = true
		w.reconcile()
		w.planPrune("prune", time.Hour)
		w.plan.PruneUnconfirmed, w.plan.PruneAnswersLate = true, true
		w.reconcile()
		p := w.status().Prune
		require.NotNil(t, p)
		require.Equal(t, v1alpha1.PruneStatus{UID: "prune", State: v1alpha1.PruneWaiting, Message: p.Message}, *p)
		require.Contains(t, p.Message, "waits for the hub to confirm, within 2m0s of a report of the agent,")
		require.LessOrEqual(t, len(p.Message), 512)
		require.LessOrEqual(t, len(p.Message), 160, "the hub quotes it behind a sentence of its own")
		require.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
		require.True(t, w.lastDecision.AskPruneConfirmed, "it goes on asking")
		require.Equal(t, []types.UID{"former"}, w.status().EndedPrunes)
		return w
	}
	for name, tt := range map[string]struct {
		change func(*simulation)
		want   v1alpha1.PruneState // empty for none
	}{
		"the agent has restarted":    {func(w *simulation) { w.plan.PruneAnswersLate = false }, v1alpha1.PruneWaiting},
		"the plan is unknown":        {func(w *simulation) { w.plan = image.PlannedState{Keep: true, Unknown: true} }, v1alpha1.PruneWaiting},
		"an answer comes in time":    {func(w *simulation) { w.plan.PruneUnconfirmed, w.plan.PruneAnswersLate = false, false }, v1alpha1.PrunePending},
		"it is undone":               {func(w *simulation) { w.plan.Prune.Undo = true }, v1alpha1.PruneUndone},
		"a VM references it":         {func(w *simulation) { w.setHolders("ns/vm") }, v1alpha1.PruneSkipped},
		"it is withdrawn":            {func(w *simulation) { w.plan = image.PlannedState{} }, ""},
		"another prune has the same": {func(w *simulation) { w.planPrune("another", 0); w.plan.PruneAnswersLate = false }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := late(t)
			tt.change(w)
			w.reconcile()
			var got v1alpha1.PruneState
			if p := w.status().Prune; p != nil {
				assert.Equal(t, types.UID("prune"), p.UID)
				got = p.State
			}
			assert.Equal(t, tt.want, got)
			if got == v1alpha1.PruneWaiting {
				assert.NotZero(t, w.lastDecision.RequeueAfter, "no event of the image says that it ends")
				assert.LessOrEqual(t, w.lastDecision.RequeueAfter, time.Minute)
			}
			assert.Contains(t, w.status().EndedPrunes, types.UID("former"))
			assert.Equal(t, tt.want != "" && tt.want.IsFinal(), slices.Contains(w.status().EndedPrunes, "prune"), "it may still begin")
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
