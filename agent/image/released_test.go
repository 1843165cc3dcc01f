package image_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// releaseImage deletes the image, without the agent's finalizer.
func (w *simulation) releaseImage() {
	w.deleteImage()
	w.img.Finalizers = []string{"example.com/hold"}
}

// The status of a released image says that it is being deleted, whatever it said before.
func TestReleasedImageSaysWhatKeepsIt(t *testing.T) {
	for name, prepare := range map[string]func(*testing.T) *simulation{
		"queued": func(t *testing.T) *simulation {
			w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
			w.status().QueuePosition = ptr.To[int32](3)
			return w
		},
		"importing": func(t *testing.T) *simulation {
			w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
			w.startImport()
			w.reportProgress("40.0%")
			w.reconcile()
			require.Equal(t, "40.0%", w.status().Progress)
			return w
		},
		"serving": newServingSimulation,
		"terminating": func(t *testing.T) *simulation {
			w := newServingSimulation(t)
			w.setHolders("ns/vm")
			w.deleteImage()
			w.reconcile()
			require.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
			return w
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := prepare(t)
			w.releaseImage()
			d := w.reconcile()
			st := w.status()
			assert.Equal(t, v1alpha1.PhaseDeleting, st.Phase)
			assert.Equal(t, v1alpha1.ReasonDeleted, st.Reason)
			assert.Contains(t, st.Message, "without finalizer "+v1alpha1.FinalizerImage)
			assert.Contains(t, st.Message, "the agent deletes its import where that holds a slot, and no other storage", "as the ledger does")
			assert.Contains(t, st.Message, "example.com/hold")
			assert.Nil(t, st.QueuePosition)
			assert.Empty(t, st.Progress)
			assert.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionReady).Status)
			assert.Equal(t, image.Decision{Status: d.Status}, d, "the agent does nothing else for it")
			assert.True(t, equality.Semantic.DeepEqual(d.Status, w.reconcile().Status), "it is stored once")
		})
	}
}

// A prune of a released image waits until that is gone.
func TestPruneOfReleasedImage(t *testing.T) {
	const released = "is being deleted without the agent's finalizer"
	for name, tt := range map[string]struct {
		prepare     func(*simulation)
		wantState   v1alpha1.PruneState // empty for none
		wantMessage string
	}{
		"requested": {func(w *simulation) { w.planPrune("prune", time.Hour) }, v1alpha1.PruneWaiting, released},
		"it waited for the hub to confirm": {func(w *simulation) {
			w.planPrune("prune", time.Hour)
			w.plan.PruneUnconfirmed, w.plan.PruneAnswersLate = true, true
			w.reconcile()
			require.Contains(w.t, w.status().Prune.Message, "waits for the hub to confirm")
		}, v1alpha1.PruneWaiting, released},
		"the plan is unknown": {func(w *simulation) {
			w.planPrune("prune", time.Hour)
			w.plan.PruneUnconfirmed, w.plan.PruneAnswersLate = true, true
			w.reconcile()
			w.plan = image.PlannedState{Keep: true, Unknown: true}
		}, v1alpha1.PruneWaiting, "waits for the hub"},
		"its window is open": {func(w *simulation) {
			w.planPrune("prune", time.Hour)
			w.reconcile()
		}, v1alpha1.PruneWaiting, released},
		"its window is open, and it is undone": {func(w *simulation) {
			p := w.planPrune("prune", time.Hour)
			w.reconcile()
			p.Undo = true
		}, v1alpha1.PruneUndone, "undone"},
		"its window is open, and the plan is unknown": {func(w *simulation) {
			w.planPrune("prune", time.Hour)
			w.reconcile()
			w.plan = image.PlannedState{Keep: true, Unknown: true}
		}, v1alpha1.PruneWaiting, released},
		"its window is open, and it is withdrawn": {func(w *simulation) {
			w.planPrune("prune", time.Hour)
			w.reconcile()
			w.plan = image.PlannedState{}
		}, v1alpha1.PruneSkipped, "the hub no longer requests the prune"},
		"another one's window is open, and that is withdrawn": {func(w *simulation) {
			w.planPrune("former", time.Hour)
			w.reconcile()
			w.planPrune("prune", time.Hour)
		}, v1alpha1.PruneWaiting, released},
		"it may have deleted the image, and is withdrawn": {func(w *simulation) {
			w.planPrune("prune", 0)
			w.reconcile()
			w.plan = image.PlannedState{}
		}, v1alpha1.PrunePending, "is deleted after"},
		"it may have deleted the image, and is undone": {func(w *simulation) {
			p := w.planPrune("prune", 0)
			w.reconcile()
			p.Undo = true
		}, v1alpha1.PrunePending, "is deleted after"},
		"it has ended": {func(w *simulation) {
			w.setHolders("ns/vm")
			w.planPrune("prune", time.Hour)
			w.reconcile()
		}, v1alpha1.PruneSkipped, "ns/vm"},
		"it is undone":   {func(w *simulation) { w.planPrune("prune", time.Hour).Undo = true }, v1alpha1.PruneUndone, "undone"},
		"none requested": {func(*simulation) {}, "", ""},
		"it is withdrawn": {func(w *simulation) {
			w.planPrune("prune", time.Hour)
			w.plan.PruneUnconfirmed, w.plan.PruneAnswersLate = true, true
			w.reconcile()
			w.plan = image.PlannedState{}
		}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newServingSimulation(t)
			tt.prepare(w)
			w.releaseImage()
			w.reconcile()
			w.reconcile()
			p := w.status().Prune
			if tt.wantState == "" {
				assert.Nil(t, p)
				return
			}
			require.NotNil(t, p)
			assert.Equal(t, types.UID("prune"), p.UID)
			assert.Equal(t, tt.wantState, p.State)
			assert.Contains(t, p.Message, tt.wantMessage)
			if p.State == v1alpha1.PruneWaiting {
				assert.LessOrEqual(t, len(p.Message), 160, "the hub quotes it behind a sentence of its own")
			}
		})
	}
}

// A stale plan of the cache ends no prune of a released image.
func TestStalePlanEndsNoPruneOfReleasedImage(t *testing.T) {
	w := newPendingPruneSimulation(t)
	w.releaseImage()
	w.syncCaches()
	w.cachedPlan.Prune = nil
	w.reconcileCached(allWrites)
	assert.True(t, w.lastViewLive)
	assert.Equal(t, v1alpha1.PruneWaiting, w.status().Prune.State)
}
