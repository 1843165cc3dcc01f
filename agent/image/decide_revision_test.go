package image_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/queue"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	urlA = "https://images.example.com/a.qcow2"
	urlB = "https://images.example.com/b.qcow2"
)

func TestDecideSyncsANewRevisionBesideTheOld(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())
	w.imported()
	old := *w.status().Serving
	oldPlace := w.current().OrderingKey

	w.later(time.Minute)
	w.setURL(urlB)
	require.Equal(t, queue.Pending, image.StandingOf(w.img), "not looked at yet")
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseQueued, w.status().Phase)
	assert.Equal(t, &old, w.status().Serving, "the old one serves")
	assert.NotEqual(t, oldPlace, w.current().OrderingKey)
	assert.Zero(t, w.status().Attempts)

	w.begun()
	assert.Equal(t, "importing, attempt 1 of 3", w.status().Message)
	assert.EqualValues(t, 1, w.status().Attempts)
	assert.EqualValues(t, 2, w.current().Attempt, "numbers go on through all revisions")
	assert.Equal(t, &old, w.status().Serving)

	w.complete()
	w.reconcile()
	assert.Equal(t, w.dataVolume().Name, w.status().Serving.PersistentVolumeClaim)
	assert.Empty(t, w.last.Delete, "not before it is stored what serves")
	w.reconcile()
	assert.True(t, w.live, "nor before VMs are listed that have pinned it")
	assert.Equal(t, []string{"DataVolume " + old.PersistentVolumeClaim}, deletes(w.last), "the old one goes once the new one serves")
	w.settleStorage()
	assert.Len(t, w.status().Revisions, 1, "and is forgotten once it is gone")
	assert.Len(t, w.lists.DataVolumes, 1)
}

func TestDecideEndsASupersededImport(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())
	w.imported()
	old := *w.status().Serving
	w.setURL(urlB)
	w.reconcile()
	w.begun()
	superseded := w.dataVolume().Name

	w.setURL("https://images.example.com/c.qcow2")
	d := w.reconcile()

	require.Len(t, d.Ended, 1)
	assert.Equal(t, v1alpha1.ReasonSuperseded, d.Ended[0].Failure.Reason)
	assert.Empty(t, w.ledger().Admitted, "not before its slot is free")
	assert.Equal(t, []string{"DataVolume " + superseded}, deletes(w.reconcile()))
	assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
	assert.Equal(t, &old, w.status().Serving, "the old one still serves")
	assert.Zero(t, w.status().Attempts, "what was superseded counts against nobody")
	w.settleStorage()
	w.imported()
	assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	assert.EqualValues(t, 3, w.status().Serving.Attempt)
}

func TestDecideEndsASupersededSlotThatWasNotBegun(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())
	w.ledger()
	w.setURL(urlB)
	d := w.reconcile()
	require.Len(t, d.Ended, 1)
	assert.Equal(t, v1alpha1.ReasonSuperseded, d.Ended[0].Failure.Reason)
	w.rollForward()
	assert.Empty(t, w.lists.DataVolumes)
	w.settleStorage()
	assert.Len(t, w.slots, 1, "the new one has it")
	assert.EqualValues(t, 2, w.slots[0].Attempt)
}

func TestDecideGoesBackToAnEarlierRevision(t *testing.T) {
	t.Run("that still serves", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a").WithURL(urlA), unasked())
		w.imported()
		serving := *w.status().Serving
		w.setURL(urlB)
		w.reconcile()
		w.begun()
		w.setURL(urlA)
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase, "nothing needs to be downloaded")
		assert.Equal(t, &serving, w.status().Serving)
		w.settleStorage()
		assert.Empty(t, w.slots)
		assert.Len(t, w.lists.DataVolumes, 1)
	})
	t.Run("that was being imported", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a").WithURL(urlA), unasked())
		w.begun()
		w.setURL(urlB)
		w.reconcile()
		place := w.current().OrderingKey
		w.setURL(urlA)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
		assert.Less(t, place.Sequence, w.current().OrderingKey.Sequence, "it queues behind")
		assert.Zero(t, w.status().Attempts)
		w.settleStorage()
		require.Len(t, w.slots, 1)
		assert.EqualValues(t, 2, w.slots[0].Attempt, "the number of what was superseded is not used again")
		w.imported()
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	})
	t.Run("before anybody looked", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a").WithURL(urlA), unasked())
		w.begun()
		w.setURL(urlB)
		w.setURL(urlA)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason, "its import goes on")
	})
}

func TestDecideBoundsTheRevisions(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())
	w.imported()
	serving := *w.status().Serving
	for i := range 20 {
		w.setURL(fmt.Sprintf("https://images.example.com/%d.qcow2", i))
		w.reconcile() // holds that there are no more than MaxRevisions
		if i%3 == 0 {
			w.ledger()
			w.rollForward()
		}
		if i%6 == 0 {
			w.reconcile()
		}
		if i%5 == 0 {
			w.settleStorage()
		}
		assert.Equal(t, &serving, w.status().Serving)
	}
	w.settleStorage()
	w.imported()
	w.settleStorage()
	assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	assert.Len(t, w.status().Revisions, 1)
	assert.Len(t, w.lists.DataVolumes, 1)
}

// The slots in the cache are late: an import that runs must not be forgotten
// meanwhile, or the ledger takes it for one that was never begun.
func TestDecideKeepsARevisionThatRunsThoughItsSlotIsNotSeen(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())
	w.imported()
	for _, name := range []string{"c", "d", "c"} {
		w.setURL("https://images.example.com/" + name)
		w.reconcile()
	}
	w.begun()
	slot := w.slots[0]
	w.setURL("https://images.example.com/e")
	w.sync()
	w.cache.slots = nil

	w.reconcileCached(allWrites)

	assert.True(t, w.live)
	outcome, begun := image.OutcomeOf(w.img, slot)
	assert.True(t, begun)
	assert.Equal(t, v1alpha1.OutcomeFailed, outcome)
}

func TestDecideStartsOver(t *testing.T) {
	for name, change := range map[string]func(*world){
		"by annotation":              func(w *world) { w.retry("now") },
		"by an edit of the source":   func(w *world) { w.setURL(urlB) },
		"by an edit of the Secret":   func(w *world) { w.edit(func(s *v1alpha1.VMDiskImageSpec) { s.SecretRef = "s" }) },
		"by an edit of the priority": func(w *world) { w.edit(func(s *v1alpha1.VMDiskImageSpec) { s.Priority = 5 }) },
	} {
		t.Run(name, func(t *testing.T) {
			w := queued(t, apitest.Image("ns/a"), unasked())
			w.failed(notFound)
			require.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
			place := w.current().OrderingKey
			change(w)
			w.reconcile()
			assert.Equal(t, v1alpha1.PhaseQueued, w.status().Phase)
			assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
			assert.Zero(t, w.status().Attempts)
			assert.Less(t, place.Sequence, w.current().OrderingKey.Sequence, "who has left the queue returns to its end")

			for range 3 { // all of its retries
				w.failed("unexpected EOF")
				w.later(time.Hour)
				w.reconcile()
			}
			assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
			assert.EqualValues(t, 4, w.status().LastAttempt)
			w.reconcile()
			assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase, "it starts over once for each change")
		})
	}
	t.Run("while it backs off", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.failed("unexpected EOF")
		place := w.current().OrderingKey
		w.retry("now")
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
		assert.Equal(t, place, w.current().OrderingKey, "and keeps its place")
	})
	t.Run("while it backs off, by a clock that is behind", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.failed("unexpected EOF")
		w.retry("now")
		w.reconcile()
		w.later(-time.Hour)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
	})
	t.Run("while a retry runs", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.failed("unexpected EOF")
		w.later(time.Hour)
		w.reconcile()
		w.begun()
		w.retry("now")
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
		assert.NotContains(t, w.status().Message, "attempt 0")
		w.breakOff("unexpected EOF")
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
	})
	t.Run("not by an edit that changes no source while a retry runs", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.failed("unexpected EOF")
		w.later(time.Hour)
		w.reconcile()
		w.begun()
		place := w.current().OrderingKey
		w.edit(func(s *v1alpha1.VMDiskImageSpec) { s.Priority = 5 })
		w.reconcile()
		assert.Equal(t, place, w.current().OrderingKey)
		assert.EqualValues(t, 2, w.status().Attempts)
	})
	t.Run("once for a token of any length", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.failed(notFound)
		w.retry(strings.Repeat("x", 1023) + "界")
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseQueued, w.status().Phase)
		w.failed(notFound)
		w.reconcile()
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
	})
}

// A revision can be forgotten before the ledger has seen how its attempt ended.
// If it is asked for again just then, its old slot is not one still to begin.
func TestDecideDoesNotBeginTheAttemptOfAForgottenRevisionAgain(t *testing.T) {
	w := queued(t, apitest.Image("ns/a").WithURL(urlA), unasked())
	w.begun()
	w.cache.slots = nil // and stays late
	w.setURL(urlB)
	for range 3 {
		w.syncImage()
		w.reconcileCached(allWrites)
		w.collect()
		w.syncImage()
		w.syncLists()
	}
	require.Len(t, w.status().Revisions, 1, "the first is forgotten")
	w.setURL(urlA)
	w.syncImage()
	w.reconcileCached(allWrites)

	w.rollForward()
	assert.Empty(t, w.lists.DataVolumes)
	assert.True(t, w.ledger().Slots[0].Ended)
	w.reconcile()
	assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
	w.ledger()
	require.Len(t, w.slots, 1)
	assert.EqualValues(t, 2, w.slots[0].Attempt)
	w.imported()
	assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
}
