package image_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// planPrune makes the plan prune the image as it is.
func (w *simulation) planPrune(uid types.UID, window time.Duration) *v1alpha1.PlannedPrune {
	w.plan.Prune = &v1alpha1.PlannedPrune{
		Namespace: w.img.Namespace, Name: w.img.Name, ImageUID: w.img.UID, Revision: w.img.Spec.Revision(),
		UnreferencedSince: w.now.Unix(), Others: true,
		UID: uid, UndoWindow: metav1.Duration{Duration: window},
	}
	return w.plan.Prune
}

// newServingSimulation returns a simulation whose image serves.
func newServingSimulation(t *testing.T) *simulation {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	return w
}

// newPendingPruneSimulation returns a simulation whose image has an undo window of one hour.
func newPendingPruneSimulation(t *testing.T) *simulation {
	w := newServingSimulation(t)
	w.planPrune("prune", time.Hour)
	w.reconcile()
	require.Equal(t, v1alpha1.PrunePending, w.status().Prune.State)
	return w
}

func TestPrunedImageServesUntilUndoWindowEnds(t *testing.T) {
	w := newServingSimulation(t)
	serving := *w.status().Serving
	w.advanceClock(300 * time.Millisecond)
	w.planPrune("prune", time.Hour)
	started := w.now
	w.reconcile()
	assert.Equal(t, v1alpha1.PhasePrunePending, w.status().Phase)
	assert.Equal(t, v1alpha1.ReasonUndoWindowOpen, w.status().Reason)
	assert.Contains(t, w.status().Message, "ImagePrune with UID prune")
	assert.Contains(t, w.status().Message, w.status().Prune.Until.UTC().Format(time.RFC3339))
	assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionReady).Status)
	assert.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionReconciling).Status)
	assert.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionStalled).Status)
	assert.Equal(t, &serving, w.status().Serving)
	assert.Equal(t, ledger.NotQueued, image.QueueStateOf(w.img))
	until := w.status().Prune.Until.Time
	assert.GreaterOrEqual(t, until.Sub(started), time.Hour, "not shorter than requested")
	assert.Less(t, until.Sub(started), time.Hour+time.Second)
	assert.LessOrEqual(t, w.lastDecision.RequeueAfter, time.Hour+time.Second)
	assert.NotZero(t, w.lastDecision.RequeueAfter)
	assert.False(t, w.lastViewLive, "waiting needs no live read")

	w.advanceClock(until.Sub(w.now) - time.Millisecond)
	w.reconcile()
	require.False(t, w.lastDecision.DeleteImage)
	assert.LessOrEqual(t, w.lastDecision.RequeueAfter, 10*time.Millisecond)
	w.advanceClock(time.Millisecond)
	w.reconcile()
	assert.True(t, w.lastViewLive)
	assert.True(t, w.lastDecision.DeleteImage)
	assert.True(t, w.lastDecision.Pruned)
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
	assert.Equal(t, v1alpha1.PrunePending, w.status().Prune.State, "Pending until the image is gone")
	w.reconcile()
	w.removeDeletedObjects()
	w.reconcile()
	assert.Nil(t, w.img)
}

func TestPruneIsStoredBeforeAnythingIsDeleted(t *testing.T) {
	w := newServingSimulation(t)
	w.planPrune("prune", 0)
	w.syncCaches()
	w.reconcileCached(0)
	require.False(t, w.lastDecision.DeleteImage)
	require.Nil(t, w.status().Prune, "the agent died before it stored Pending")
	w.reconcileCached(allWrites)
	require.False(t, w.lastDecision.DeleteImage)
	assert.Equal(t, v1alpha1.PhasePrunePending, w.status().Phase)
	assert.NotZero(t, w.lastDecision.RequeueAfter)
	w.reconcile()
	assert.True(t, w.lastDecision.DeleteImage, "no window to wait for")
}

func TestPruneEndsWithReason(t *testing.T) {
	const ended = 5 * time.Minute
	for name, tt := range map[string]struct {
		change      func(*simulation)
		wantState   v1alpha1.PruneState
		wantReason  string
		wantMessage string
	}{
		"it is undone":                {func(w *simulation) { w.plan.Prune.Undo = true }, v1alpha1.PruneUndone, v1alpha1.PruneUndoAsked, "undone"},
		"the plan keeps it":           {func(w *simulation) { w.plan.Keep = true }, v1alpha1.PruneSkipped, v1alpha1.PruneWanted, "ClusterPlan"},
		"a VM references it":          {func(w *simulation) { w.setHolders("ns/vm", "ns/other") }, v1alpha1.PruneSkipped, v1alpha1.PruneReferenced, "ns/vm, ns/other"},
		"its source changes":          {func(w *simulation) { w.setURL(urlB) }, v1alpha1.PruneSkipped, v1alpha1.PruneChanged, "source"},
		"the plan has another source": {func(w *simulation) { w.plan.Prune.Revision = "another" }, v1alpha1.PruneSkipped, v1alpha1.PruneChanged, "source"},
		"its storage is lost": {func(w *simulation) {
			w.loseObject(image.KindDataVolume, w.lastDataVolume().Name)
		}, v1alpha1.PruneSkipped, v1alpha1.PruneInTransition, "Queued"},
		"undone and referenced":  {func(w *simulation) { w.plan.Prune.Undo = true; w.setHolders("ns/vm") }, v1alpha1.PruneUndone, v1alpha1.PruneUndoAsked, ""},
		"kept and referenced":    {func(w *simulation) { w.plan.Keep = true; w.setHolders("ns/vm") }, v1alpha1.PruneSkipped, v1alpha1.PruneWanted, ""},
		"referenced and changed": {func(w *simulation) { w.setURL(urlB); w.setHolders("ns/vm") }, v1alpha1.PruneSkipped, v1alpha1.PruneReferenced, ""},
	} {
		for _, pending := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", pending ", pending), func(t *testing.T) {
				w := newServingSimulation(t)
				w.planPrune("prune", ended)
				if pending {
					w.reconcile()
					require.Equal(t, v1alpha1.PhasePrunePending, w.status().Phase)
				}
				tt.change(w)
				w.reconcile()
				p := w.status().Prune
				require.NotNil(t, p)
				assert.Equal(t, tt.wantState, p.State)
				assert.Equal(t, tt.wantReason, p.Reason)
				assert.Contains(t, p.Message, tt.wantMessage)
				assert.Equal(t, types.UID("prune"), p.UID)
				assert.Equal(t, []types.UID{"prune"}, w.status().EndedPrunes)
				assert.NotEqual(t, v1alpha1.PhasePrunePending, w.status().Phase)

				asked := *w.plan.Prune
				asked.Undo, asked.Revision = false, w.img.Spec.Revision()
				w.plan = image.PlannedState{Prune: &asked}
				w.setHolders()
				if w.status().Phase == v1alpha1.PhaseQueued {
					w.runImport()
				}
				for range 3 {
					w.advanceClock(time.Hour)
					w.reconcile()
					require.False(t, w.lastDecision.DeleteImage, "the prune does not begin again")
				}
				assert.Equal(t, p, w.status().Prune)
				assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
			})
		}
	}
}

func TestWithdrawnPruneIsUndone(t *testing.T) {
	t.Run("a pending prune is undone", func(t *testing.T) {
		w := newPendingPruneSimulation(t)
		w.plan.Prune = nil
		w.reconcile()
		assert.True(t, w.lastViewLive)
		assert.Equal(t, v1alpha1.PruneUndone, w.status().Prune.State)
		assert.Equal(t, v1alpha1.PruneWithdrawn, w.status().Prune.Reason)
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	})
	t.Run("not by a stale plan from the cache", func(t *testing.T) {
		w := newPendingPruneSimulation(t)
		w.cachedPlan.Prune = nil
		w.reconcileCached(allWrites)
		assert.True(t, w.lastViewLive)
		assert.Equal(t, v1alpha1.PrunePending, w.status().Prune.State)
	})
	t.Run("a due prune needs the live plan", func(t *testing.T) {
		w := newPendingPruneSimulation(t)
		w.advanceClock(2 * time.Hour)
		w.plan.Prune = nil
		w.reconcileCached(allWrites)
		assert.True(t, w.lastViewLive)
		require.False(t, w.lastDecision.DeleteImage)
		assert.Equal(t, v1alpha1.PruneUndone, w.status().Prune.State)
	})
	t.Run("no status without a prune", func(t *testing.T) {
		w := newServingSimulation(t)
		w.reconcile()
		assert.Nil(t, w.status().Prune)
	})
	t.Run("another prune replaces it", func(t *testing.T) {
		w := newPendingPruneSimulation(t)
		w.advanceClock(30 * time.Minute)
		w.planPrune("next", time.Hour)
		w.reconcile()
		assert.Equal(t, types.UID("next"), w.status().Prune.UID)
		assert.Equal(t, v1alpha1.PrunePending, w.status().Prune.State)
		assert.Equal(t, []types.UID{"prune"}, w.status().EndedPrunes)
		assert.True(t, w.status().Prune.Until.After(w.now.Add(59*time.Minute)), "with its own window")

		w.planPrune("prune", time.Hour)
		w.reconcile()
		assert.Equal(t, v1alpha1.PruneStatus{
			UID: "prune", State: v1alpha1.PruneUndone, Reason: v1alpha1.PruneWithdrawn,
			Message: "it ended before another prune of the image",
		}, *w.status().Prune)
		assert.ElementsMatch(t, []types.UID{"prune", "next"}, w.status().EndedPrunes)
	})
	t.Run("not for a later image of the same name", func(t *testing.T) {
		w := newServingSimulation(t)
		w.planPrune("prune", 0).ImageUID = "former"
		for range 3 {
			w.reconcile()
			assert.Nil(t, w.status().Prune)
			require.False(t, w.lastDecision.DeleteImage)
		}
	})
}

func TestPruneWaitsWhilePlanIsUnknown(t *testing.T) {
	refused := image.PlannedState{Keep: true, Unknown: true}
	w := newPendingPruneSimulation(t)
	w.plan = refused
	w.advanceClock(2 * time.Hour)
	w.reconcile()
	assert.Equal(t, v1alpha1.PrunePending, w.status().Prune.State)
	require.False(t, w.lastDecision.DeleteImage)
	assert.NotZero(t, w.lastDecision.RequeueAfter)
	t.Run("the plan is known in the cache only", func(t *testing.T) {
		w.planPrune("prune", time.Hour)
		w.plan.Keep, w.plan.Unknown = false, false
		w.syncCaches()
		w.plan = refused // unknown again when it is read live
		w.reconcileCached(allWrites)
		assert.True(t, w.lastViewLive)
		require.False(t, w.lastDecision.DeleteImage)
		assert.Equal(t, v1alpha1.PrunePending, w.status().Prune.State)
	})
	t.Run("a VM ends it nevertheless", func(t *testing.T) {
		w.setHolders("ns/vm")
		w.reconcile()
		assert.Equal(t, v1alpha1.PruneReferenced, w.status().Prune.Reason)
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	})
	t.Run("no prune begins", func(t *testing.T) {
		w := newServingSimulation(t)
		w.planPrune("prune", 0)
		w.plan.Keep, w.plan.Unknown = true, true
		w.reconcile()
		assert.Nil(t, w.status().Prune)
	})
}

func TestPruneSeesHolderMissingFromCache(t *testing.T) {
	w := newPendingPruneSimulation(t)
	w.advanceClock(2 * time.Hour)
	w.syncCaches()
	w.setHolders("ns/vm")
	w.reconcileCached(allWrites)
	assert.True(t, w.lastViewLive)
	require.False(t, w.lastDecision.DeleteImage)
	assert.Equal(t, v1alpha1.PruneReferenced, w.status().Prune.Reason)
	assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
}

// A leader lists holders and is paused. Before it deletes the image, another leader sees a
// holder and ends the prune.
func TestPruneDeletesOnlyUnchangedImage(t *testing.T) {
	w := newPendingPruneSimulation(t)
	w.advanceClock(2 * time.Hour)
	w.syncCaches()
	v := w.buildView(true)
	d := decideChecked(t, v)
	require.True(t, d.Pruned)
	w.setHolders("ns/vm")
	w.reconcile()
	require.Equal(t, v1alpha1.PruneSkipped, w.status().Prune.State)
	w.carryOutDecision(v, d, allWrites)
	assert.Nil(t, w.img.DeletionTimestamp)
}

func TestPruneOfDeletedImage(t *testing.T) {
	t.Run("a VM references it after it was deleted for the prune", func(t *testing.T) {
		w := newPendingPruneSimulation(t)
		w.advanceClock(2 * time.Hour)
		w.reconcile()
		require.True(t, w.lastDecision.Pruned)
		w.setHolders("ns/vm")
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
		assert.Equal(t, v1alpha1.PruneSkipped, w.status().Prune.State)
		assert.Equal(t, v1alpha1.PruneReferenced, w.status().Prune.Reason)
		assert.Contains(t, w.status().Prune.Message, "is Terminating")
		assert.Contains(t, w.status().Prune.Message, "ns/vm")
	})
	t.Run("a plan requests a prune while it is Terminating", func(t *testing.T) {
		w := newServingSimulation(t)
		w.setHolders("ns/vm")
		w.deleteImage()
		w.reconcile()
		w.planPrune("prune", 0)
		w.reconcile()
		assert.Equal(t, v1alpha1.PruneReferenced, w.status().Prune.Reason)
	})
	t.Run("a Deleting image is neither undone nor skipped", func(t *testing.T) {
		for _, plan := range []func(*simulation){
			func(w *simulation) { w.plan = image.PlannedState{} },
			func(w *simulation) { w.plan.Prune.Undo = true },
			func(w *simulation) { w.plan.Keep = true },
		} {
			w := newPendingPruneSimulation(t)
			w.deleteImage()
			plan(w)
			w.reconcile()
			assert.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
			assert.Equal(t, v1alpha1.PrunePending, w.status().Prune.State)
		}
	})
}

func TestPruneOfUnfinishedImage(t *testing.T) {
	for name, tt := range map[string]struct {
		reach func(*simulation)
		want  v1alpha1.PruneState
	}{
		"queued":      {func(*simulation) {}, v1alpha1.PruneSkipped},
		"admitted":    {func(w *simulation) { w.stepLedger(); w.advanceClock(time.Minute); w.reconcile() }, v1alpha1.PruneSkipped},
		"importing":   {(*simulation).startImport, v1alpha1.PruneSkipped},
		"backing off": {func(w *simulation) { w.runFailingAttempt("unexpected EOF") }, v1alpha1.PruneSkipped},
		"failed":      {func(w *simulation) { w.runFailingAttempt(notFoundMessage) }, v1alpha1.PrunePending},
	} {
		t.Run(name, func(t *testing.T) {
			w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
			tt.reach(w)
			before, message := w.status().Phase, w.status().Message
			w.planPrune("prune", time.Hour)
			w.reconcile()
			require.NotNil(t, w.status().Prune)
			assert.Equal(t, tt.want, w.status().Prune.State)
			if tt.want == v1alpha1.PruneSkipped {
				assert.Equal(t, v1alpha1.PruneInTransition, w.status().Prune.Reason)
				assert.Equal(t, before, w.status().Phase)
				return
			}
			assert.Contains(t, w.status().Message, "it has failed: "+message)
			assert.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionReady).Status)
			assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionStalled).Status)
			assert.Equal(t, string(v1alpha1.ReasonNotFound), w.condition(v1alpha1.ConditionImported).Reason)
			w.advanceClock(2 * time.Hour)
			w.reconcile()
			assert.True(t, w.lastDecision.Pruned)
		})
	}
}

func TestEndedPrunesAreRemembered(t *testing.T) {
	w := newServingSimulation(t)
	w.setHolders("ns/vm")
	for i := range v1alpha1.MaxEndedPrunes + 2 {
		w.planPrune(types.UID(fmt.Sprint("prune-", i)), time.Hour)
		w.reconcile()
	}
	require.Len(t, w.status().EndedPrunes, v1alpha1.MaxEndedPrunes)
	assert.Equal(t, types.UID("prune-17"), w.status().EndedPrunes[0], "the latest first")
	assert.Equal(t, types.UID("prune-2"), w.status().EndedPrunes[v1alpha1.MaxEndedPrunes-1])
}

// A status whose endedPrunes were removed by hand.
func TestForgottenEndedPruneStaysEnded(t *testing.T) {
	w := newServingSimulation(t)
	w.img.Status.Prune = &v1alpha1.PruneStatus{UID: "prune", State: v1alpha1.PruneSkipped, Reason: v1alpha1.PruneReferenced}
	w.bumpResourceVersion()
	w.planPrune("prune", 0)
	w.reconcile()
	assert.Equal(t, v1alpha1.PruneSkipped, w.status().Prune.State)
	w.planPrune("next", time.Hour)
	w.reconcile()
	assert.Equal(t, types.UID("next"), w.status().Prune.UID)
	assert.Equal(t, []types.UID{"prune"}, w.status().EndedPrunes)
}

// The message of a PruneStatus has at most 512 characters.
func TestPruneMessageIsBounded(t *testing.T) {
	w := newServingSimulation(t)
	var names []string
	for i := range 5 {
		names = append(names, fmt.Sprint("ns/", i, strings.Repeat("ä", 200)))
	}
	w.setHolders(names...)
	w.planPrune("prune", time.Hour)
	w.reconcile()
	assert.LessOrEqual(t, len(w.status().Prune.Message), 512)
	assert.NotContains(t, w.status().Prune.Message, "�")
}

// The image may expire before its undo window ends: then it is deleted as without a prune.
func TestPruneDoesNotDelayExpiry(t *testing.T) {
	w := newServingSimulation(t)
	w.editSpec(func(s *v1alpha1.VMDiskImageSpec) {
		s.DeleteUnreferencedAfter = &metav1.Duration{Duration: 2 * time.Hour}
	})
	w.planPrune("prune", 48*time.Hour)
	w.reconcile()
	require.Equal(t, v1alpha1.PrunePending, w.status().Prune.State)
	w.advanceClock(3 * time.Hour)
	w.reconcile()
	assert.True(t, w.lastDecision.DeleteImage)
	assert.False(t, w.lastDecision.Pruned)
}

func TestPruneSkipsChangedImage(t *testing.T) {
	reported := func(w *simulation) *v1alpha1.PlannedPrune {
		want := w.planPrune("prune", time.Hour)
		want.UnreferencedSince = w.status().References.UnreferencedSince.Unix()
		return want
	}
	referencedAgain := func(w *simulation) {
		w.advanceClock(time.Minute)
		w.holders = []image.Holder{{Name: "ns/vm"}}
		w.reconcile()
		w.advanceClock(time.Minute)
		w.holders = nil
		w.reconcile()
	}
	unplan := func(w *simulation) { delete(w.img.Labels, v1alpha1.LabelPlanned) }
	for name, tt := range map[string]struct {
		pending bool
		others  bool
		change  func(*simulation)
		want    string
	}{
		"nothing has changed":                  {change: func(*simulation) {}},
		"it was referenced since":              {change: referencedAgain, want: "a VirtualMachine has referenced it since it was reported"},
		"it was referenced, others included":   {others: true, change: referencedAgain, want: "a VirtualMachine has referenced it since it was reported"},
		"it is no longer planned":              {change: unplan, want: "set spec.includeOthers"},
		"no longer planned in its undo window": {pending: true, change: unplan, want: "set spec.includeOthers"},
		"no longer planned, others included":   {others: true, change: unplan},
	} {
		t.Run(name, func(t *testing.T) {
			w := newServingSimulation(t)
			w.img.Labels = map[string]string{v1alpha1.LabelPlanned: image.PlannedLabelValue}
			want := reported(w)
			want.Others = tt.others
			if tt.pending {
				w.reconcile()
				require.Equal(t, v1alpha1.PrunePending, w.status().Prune.State)
			} else {
				w.plan.Prune = nil
			}
			tt.change(w)
			w.plan.Prune = want
			w.reconcile()
			if tt.want == "" {
				assert.Equal(t, v1alpha1.PrunePending, w.status().Prune.State)
				return
			}
			assert.Equal(t, v1alpha1.PruneSkipped, w.status().Prune.State)
			assert.Equal(t, v1alpha1.PruneChanged, w.status().Prune.Reason)
			assert.Contains(t, w.status().Prune.Message, tt.want)
			w.advanceClock(2 * time.Hour)
			w.reconcile()
			assert.Nil(t, w.img.DeletionTimestamp)
		})
	}
}
