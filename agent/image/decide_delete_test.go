package image_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/queue"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestDecideServesOnWhileItIsHeld(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())
	w.imported()
	serving := *w.status().Serving
	w.holders = named("ns/1", "ns/2", "ns/3", "ns/4", "ns/5", "ns/6")
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
	assert.Empty(t, w.last.Delete, "and nothing more, before holders are listed again")
	w.reconcile()
	assert.True(t, w.live)
	assert.NotEmpty(t, w.last.Delete)
	w.collect()
	w.reconcile()
	assert.Nil(t, w.img)
}

func TestDecideTakesTheMarkBackForAHolder(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())
	w.imported()
	w.deleteImage()
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
	require.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionReady).Status, "it can no longer be acquired")

	w.sync() // the holder is not in the cache
	w.holders = named("ns/vm")
	w.reconcileCached(allWrites)

	assert.True(t, w.live)
	assert.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
	assert.Empty(t, w.last.Delete)
	assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionReady).Status)
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
}

// A holder that is gone already must not have the mark taken back by a cache
// that still shows it, for ever to and fro.
func TestDecideAsksLiveForHoldersOfAMarkedImage(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())
	w.imported()
	w.deleteImage()
	w.reconcile()
	w.cache.holders = named("ns/vm")
	w.reconcileCached(allWrites)
	assert.True(t, w.live)
	assert.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
}

func TestDecideTearsSnapshotsDownBeforeTheirClaims(t *testing.T) {
	w := queued(t, apitest.Image("ns/a").WithSnapshotClass("snap"), unasked())
	w.imported()
	w.readySnapshot()
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	w.deleteImage()
	w.reconcile()
	w.reconcile()
	assert.Equal(t, []string{"VolumeSnapshot " + w.snapshot().Name}, deletes(w.last))
	w.reconcile()
	assert.Empty(t, w.last.Delete, "it is still going")
	assert.False(t, w.last.RemoveFinalizer)
	w.collect()
	w.reconcile()
	assert.Equal(t, []string{"DataVolume " + w.dataVolume().Name}, deletes(w.last))
	w.collect()
	w.reconcile()
	assert.Nil(t, w.img)
}

func TestDecideDeletesInEveryState(t *testing.T) {
	for name, reach := range map[string]func(*world){
		"never visited":        func(w *world) { w.img.Status = v1alpha1.VMDiskImageStatus{} },
		"queued":               func(*world) {},
		"admitted":             func(w *world) { w.ledger() },
		"created":              func(w *world) { w.ledger(); w.rollForward() },
		"importing":            func(w *world) { w.begun() },
		"backing off":          func(w *world) { w.failed("unexpected EOF") },
		"failed":               func(w *world) { w.failed(notFound) },
		"imported, slot taken": func(w *world) { w.begun(); w.complete(); w.reconcile() },
		"snapshotting":         func(w *world) { w.imported() },
		"ready":                func(w *world) { w.imported(); w.readySnapshot(); w.reconcile() },
		"another revision": func(w *world) {
			w.imported()
			w.readySnapshot()
			w.reconcile()
			w.setURL(urlB)
			w.reconcile()
			w.begun()
		},
		"claim without number": func(w *world) {
			w.lists.Claims = append(w.lists.Claims, *apitest.Claim("ns/stray").Obj())
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := queued(t, apitest.Image("ns/a").WithSnapshotClass("snap"), unasked())
			reach(w)
			w.deleteImage()
			w.reconcile()
			assert.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
			assert.Equal(t, v1alpha1.ReasonDeleted, w.status().Reason)
			assert.Equal(t, queue.Out, image.StandingOf(w.img))
			for range 6 {
				w.ledger()
				w.rollForward()
				w.reconcile()
				w.collect()
			}
			w.ledger()
			w.reconcile()
			assert.Nil(t, w.img, "let go")
			assert.Empty(t, w.slots)
			assert.Equal(t, image.Lists{}, w.lists)
		})
	}
}

func TestDecideImportsForHoldersOfATerminatingImage(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())
	w.holders = named("ns/vm")
	w.deleteImage()
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
	w.imported()
	assert.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
	assert.NotNil(t, w.status().Serving)
}

// The API server raises the generation of what is deleted: that is no edit.
func TestDecideDoesNotStartOverBecauseItIsDeleted(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())
	w.failed(notFound)
	w.holders = named("ns/vm")
	w.deleteImage()
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
	w.later(time.Hour)
	w.reconcile()
	assert.Empty(t, w.ledger().Admitted)
	assert.Equal(t, string(v1alpha1.ReasonNotFound), w.condition(v1alpha1.ConditionImported).Reason)
}

// Its slot names a DataVolume that may still be created by a write that was
// held up: the image stays until the ledger has freed it.
func TestDecideIsNotLetGoBeforeItsSlotIsFree(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())
	w.ledger()
	w.deleteImage()
	for range 3 {
		w.reconcile()
		require.NotNil(t, w.img)
	}
	w.freeSlots()
	w.reconcile()
	assert.Nil(t, w.img)
}
