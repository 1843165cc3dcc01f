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
	w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
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
	assert.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase, "marked")
	assert.Empty(t, w.lastDecision.Delete, "and nothing more, before holders are listed again")
	w.reconcile()
	assert.True(t, w.lastViewLive)
	assert.NotEmpty(t, w.lastDecision.Delete)
	w.removeDeletedObjects()
	w.reconcile()
	assert.Nil(t, w.img)
}

func TestDeletingMarkIsRevertedForHolder(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	w.deleteImage()
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
	require.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionReady).Status, "it can no longer be acquired")

	w.syncCaches() // the holder is not in the cache
	w.holders = holdersNamed("ns/vm")
	w.reconcileCached(allWrites)

	assert.True(t, w.lastViewLive)
	assert.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
	assert.Empty(t, w.lastDecision.Delete)
	assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionReady).Status)
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
}

// A holder that is gone already must not have the mark taken back by a cache
// that still shows it, for ever to and fro.
func TestMarkedImageNeedsLiveListOfHolders(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	w.deleteImage()
	w.reconcile()
	w.cache.holders = holdersNamed("ns/vm")
	w.reconcileCached(allWrites)
	assert.True(t, w.lastViewLive)
	assert.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
}

func TestSnapshotsAreDeletedBeforeTheirClaims(t *testing.T) {
	w := queued(t, apitest.Image("ns/a").WithSnapshotClass("snap"), policyWithoutPreflight())
	w.runImport()
	w.markSnapshotReady()
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	w.deleteImage()
	w.reconcile()
	w.reconcile()
	assert.Equal(t, []string{"VolumeSnapshot " + w.lastSnapshot().Name}, deletedNames(w.lastDecision))
	w.reconcile()
	assert.Empty(t, w.lastDecision.Delete, "it is still going")
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
		"never visited":        func(w *simulation) { w.img.Status = v1alpha1.VMDiskImageStatus{} },
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
		"claim without number": func(w *simulation) {
			w.lists.Claims = append(w.lists.Claims, *apitest.PersistentVolumeClaim("ns/stray").Obj())
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := queued(t, apitest.Image("ns/a").WithSnapshotClass("snap"), policyWithoutPreflight())
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
			assert.Nil(t, w.img, "let go")
			assert.Empty(t, w.slots)
			assert.Equal(t, image.ObjectLists{}, w.lists)
		})
	}
}

func TestReferencedTerminatingImageIsImported(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.holders = holdersNamed("ns/vm")
	w.deleteImage()
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
	w.runImport()
	assert.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
	assert.NotNil(t, w.status().Serving)
}

// The API server raises the generation of what is deleted: that is no edit.
func TestDeletionDoesNotRestartFailedImage(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
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

// Its slot names a DataVolume that may still be created by a write that was
// held up: the image stays until the ledger has freed it.
func TestFinalizerStaysUntilSlotIsFree(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
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
