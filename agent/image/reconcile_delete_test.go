package image_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestTerminatingImageServesWhileReferenced(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	serving := *w.status().Serving
	w.holders = holdersNamed("ns/1", "ns/2", "ns/3", "ns/4", "ns/5", "ns/6")
	w.deleteImage()
	for range 3 {
		d := w.reconcile()
		assert.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
		assert.Equal(t, v1alpha1.ReasonReferenced, w.status().Reason)
		assert.Contains(t, w.status().Message, "ns/1, ns/2, ns/3, ns/4, ns/5 and 1 more")
		assert.Equal(t, &serving, w.status().Serving)
		assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionReady).Status)
		assert.Empty(t, d.Delete)
		assert.False(t, d.RemoveFinalizer)
	}
	w.holders = nil
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
	assert.Empty(t, w.lastDecision.Delete, "nothing is deleted before holders are listed again")
	w.reconcile()
	assert.True(t, w.lastViewLive)
	assert.NotEmpty(t, w.lastDecision.Delete)
	w.removeDeletedObjects()
	w.reconcile()
	assert.Nil(t, w.img)
}

func TestDeletingMarkIsRevertedForHolder(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	w.deleteImage()
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
	require.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionReady).Status, "it can no longer be acquired")

	w.syncCaches() // the cache does not show the holder
	w.holders = holdersNamed("ns/vm")
	w.reconcileCached(allWrites)

	assert.True(t, w.lastViewLive)
	assert.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
	assert.Empty(t, w.lastDecision.Delete)
	assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionReady).Status)
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
}

// A stale cache that still shows a holder must not revert phase Deleting, or the phase
// would flap.
func TestMarkedImageNeedsLiveListOfHolders(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	w.deleteImage()
	w.reconcile()
	w.cache.holders = holdersNamed("ns/vm")
	w.reconcileCached(allWrites)
	assert.True(t, w.lastViewLive)
	assert.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
}

func TestSnapshotsAreDeletedBeforeTheirClaims(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a").WithSnapshotClass("snap"), policyWithoutPreflight())
	w.runImport()
	w.markSnapshotReady()
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	w.deleteImage()
	w.reconcile()
	w.reconcile()
	assert.Equal(t, []string{"VolumeSnapshot " + w.lastSnapshot().Name}, deletedNames(w.lastDecision))
	w.reconcile()
	assert.Empty(t, w.lastDecision.Delete, "the VolumeSnapshot still exists")
	assert.False(t, w.lastDecision.RemoveFinalizer)
	w.removeDeletedObjects()
	w.reconcile()
	assert.Equal(t, []string{"DataVolume " + w.lastDataVolume().Name}, deletedNames(w.lastDecision))
	w.removeDeletedObjects()
	w.reconcile()
	assert.Nil(t, w.img)
}

func TestImageIsDeletedFromEveryState(t *testing.T) {
	for name, reach := range map[string]func(*simulation){
		"without a status":     func(w *simulation) { w.img.Status = v1alpha1.VMDiskImageStatus{} },
		"queued":               func(*simulation) {},
		"admitted":             func(w *simulation) { w.stepLedger() },
		"created":              func(w *simulation) { w.stepLedger(); w.createMissingDataVolumes() },
		"importing":            func(w *simulation) { w.startImport() },
		"backing off":          func(w *simulation) { w.runFailingAttempt("unexpected EOF") },
		"failed":               func(w *simulation) { w.runFailingAttempt(notFoundMessage) },
		"imported, slot taken": func(w *simulation) { w.startImport(); w.completeImport(); w.reconcile() },
		"snapshotting":         func(w *simulation) { w.runImport() },
		"ready":                func(w *simulation) { w.runImport(); w.markSnapshotReady(); w.reconcile() },
		"another revision": func(w *simulation) {
			w.runImport()
			w.markSnapshotReady()
			w.reconcile()
			w.setURL(urlB)
			w.reconcile()
			w.startImport()
		},
		"claim without attempt number": func(w *simulation) {
			w.lists.Claims = append(w.lists.Claims, *apitest.PersistentVolumeClaim("ns/stray").Obj())
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newQueuedSimulation(t, apitest.Image("ns/a").WithSnapshotClass("snap"), policyWithoutPreflight())
			reach(w)
			w.deleteImage()
			w.reconcile()
			assert.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
			assert.Equal(t, v1alpha1.ReasonDeleted, w.status().Reason)
			assert.Equal(t, ledger.NotQueued, image.QueueStateOf(w.img))
			for range 6 {
				w.stepLedger()
				w.createMissingDataVolumes()
				w.reconcile()
				w.removeDeletedObjects()
			}
			w.stepLedger()
			w.reconcile()
			assert.Nil(t, w.img, "the finalizer is removed")
			assert.Empty(t, w.slots)
			assert.Equal(t, image.ObjectLists{}, w.lists)
		})
	}
}

func TestReferencedTerminatingImageIsImported(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.holders = holdersNamed("ns/vm")
	w.deleteImage()
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
	w.runImport()
	assert.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
	assert.NotNil(t, w.status().Serving)
}

// A deletion raises the generation, and is no edit.
func TestDeletionDoesNotRestartFailedImage(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runFailingAttempt(notFoundMessage)
	w.holders = holdersNamed("ns/vm")
	w.deleteImage()
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
	w.advanceClock(time.Hour)
	w.reconcile()
	assert.Empty(t, w.stepLedger().Admitted)
	assert.Equal(t, string(v1alpha1.ReasonNotFound), w.condition(v1alpha1.ConditionImported).Reason)
}

// A delayed request may still create the DataVolume that the slot names: the image stays
// until the slot is freed.
func TestFinalizerStaysUntilSlotIsFree(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.stepLedger()
	w.deleteImage()
	for range 3 {
		w.reconcile()
		require.NotNil(t, w.img)
	}
	w.stepLedgerTwice()
	w.reconcile()
	assert.Nil(t, w.img)
}
