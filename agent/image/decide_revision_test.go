package image_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	urlA = "https://images.example.com/a.qcow2"
	urlB = "https://images.example.com/b.qcow2"
)

func TestNewRevisionIsImportedBesideOld(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	old := *w.status().Serving
	oldPlace := w.currentRevision().OrderingKey

	w.advanceClock(time.Minute)
	w.setURL(urlB)
	require.Equal(t, ledger.Pending, image.QueueStateOf(w.img), "not looked at yet")
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseQueued, w.status().Phase)
	assert.Equal(t, &old, w.status().Serving, "the old one serves")
	assert.NotEqual(t, oldPlace, w.currentRevision().OrderingKey)
	assert.Zero(t, w.status().Attempts)

	w.startImport()
	assert.Equal(t, "importing, attempt 1 of 3", w.status().Message)
	assert.EqualValues(t, 1, w.status().Attempts)
	assert.EqualValues(t, 2, w.currentRevision().Attempt, "numbers go on through all revisions")
	assert.Equal(t, &old, w.status().Serving)

	w.completeImport()
	w.reconcile()
	assert.Equal(t, w.lastDataVolume().Name, w.status().Serving.PersistentVolumeClaim)
	assert.Empty(t, w.lastDecision.Delete, "not before it is stored what serves")
	w.reconcile()
	assert.True(t, w.lastViewLive, "nor before VMs are listed that have pinned it")
	assert.Equal(t, []string{"DataVolume " + old.PersistentVolumeClaim}, deletedNames(w.lastDecision), "the old one goes once the new one serves")
	w.finishDeletions()
	assert.Len(t, w.status().Revisions, 1, "and is forgotten once it is gone")
	assert.Len(t, w.lists.DataVolumes, 1)
}

func TestSupersededImportIsEnded(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	old := *w.status().Serving
	w.setURL(urlB)
	w.reconcile()
	w.startImport()
	superseded := w.lastDataVolume().Name

	w.setURL("https://images.example.com/c.qcow2")
	d := w.reconcile()

	require.Len(t, d.EndedAttempts, 1)
	assert.Equal(t, v1alpha1.ReasonSuperseded, d.EndedAttempts[0].Failure.Reason)
	assert.Empty(t, w.stepLedger().Admitted, "not before its slot is free")
	assert.Equal(t, []string{"DataVolume " + superseded}, deletedNames(w.reconcile()))
	assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
	assert.Equal(t, &old, w.status().Serving, "the old one still serves")
	assert.Zero(t, w.status().Attempts, "what was superseded counts against nobody")
	w.finishDeletions()
	w.runImport()
	assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	assert.EqualValues(t, 3, w.status().Serving.Attempt)
}

func TestSupersededSlotWithoutStartIsEnded(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.stepLedger()
	w.setURL(urlB)
	d := w.reconcile()
	require.Len(t, d.EndedAttempts, 1)
	assert.Equal(t, v1alpha1.ReasonSuperseded, d.EndedAttempts[0].Failure.Reason)
	w.createMissingDataVolumes()
	assert.Empty(t, w.lists.DataVolumes)
	w.finishDeletions()
	assert.Len(t, w.slots, 1, "the new one has it")
	assert.EqualValues(t, 2, w.slots[0].Attempt)
}

func TestEarlierRevisionIsServedAgain(t *testing.T) {
	t.Run("that still serves", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a").WithURL(urlA), policyWithoutPreflight())
		w.runImport()
		serving := *w.status().Serving
		w.setURL(urlB)
		w.reconcile()
		w.startImport()
		w.setURL(urlA)
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase, "nothing needs to be downloaded")
		assert.Equal(t, &serving, w.status().Serving)
		w.finishDeletions()
		assert.Empty(t, w.slots)
		assert.Len(t, w.lists.DataVolumes, 1)
	})
	t.Run("that was being imported", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a").WithURL(urlA), policyWithoutPreflight())
		w.startImport()
		w.setURL(urlB)
		w.reconcile()
		place := w.currentRevision().OrderingKey
		w.setURL(urlA)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
		assert.Less(t, place.Sequence, w.currentRevision().OrderingKey.Sequence, "it queues behind")
		assert.Zero(t, w.status().Attempts)
		w.finishDeletions()
		require.Len(t, w.slots, 1)
		assert.EqualValues(t, 2, w.slots[0].Attempt, "the number of what was superseded is not used again")
		w.runImport()
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	})
	t.Run("before anybody looked", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a").WithURL(urlA), policyWithoutPreflight())
		w.startImport()
		w.setURL(urlB)
		w.setURL(urlA)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason, "its import goes on")
	})
}

func TestRevisionListIsBounded(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	serving := *w.status().Serving
	for i := range 20 {
		w.setURL(fmt.Sprintf("https://images.example.com/%d.qcow2", i))
		w.reconcile() // holds that there are no more than MaxRevisions
		if i%3 == 0 {
			w.stepLedger()
			w.createMissingDataVolumes()
		}
		if i%6 == 0 {
			w.reconcile()
		}
		if i%5 == 0 {
			w.finishDeletions()
		}
		assert.Equal(t, &serving, w.status().Serving)
	}
	w.finishDeletions()
	w.runImport()
	w.finishDeletions()
	assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	assert.Len(t, w.status().Revisions, 1)
	assert.Len(t, w.lists.DataVolumes, 1)
}

// The slots in the cache are late: an import that runs must not be forgotten
// meanwhile, or the ledger takes it for one that was never begun.
func TestRunningRevisionWithUnseenSlotIsKept(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	for _, name := range []string{"c", "d", "c"} {
		w.setURL("https://images.example.com/" + name)
		w.reconcile()
	}
	w.startImport()
	slot := w.slots[0]
	w.setURL("https://images.example.com/e")
	w.syncCaches()
	w.cache.slots = nil

	w.reconcileCached(allWrites)

	assert.True(t, w.lastViewLive)
	outcome, begun := image.OutcomeOf(w.img, slot)
	assert.True(t, begun)
	assert.Equal(t, v1alpha1.OutcomeFailed, outcome)
}

func TestFailedImageRestartsOnRequest(t *testing.T) {
	for name, change := range map[string]func(*simulation){
		"by annotation":              func(w *simulation) { w.requestRetry("now") },
		"by an edit of the source":   func(w *simulation) { w.setURL(urlB) },
		"by an edit of the Secret":   func(w *simulation) { w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.SecretRef = "s" }) },
		"by an edit of the priority": func(w *simulation) { w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.Priority = 5 }) },
	} {
		t.Run(name, func(t *testing.T) {
			w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
			w.runFailingAttempt(notFoundMessage)
			require.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
			place := w.currentRevision().OrderingKey
			change(w)
			w.reconcile()
			assert.Equal(t, v1alpha1.PhaseQueued, w.status().Phase)
			assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
			assert.Zero(t, w.status().Attempts)
			assert.Less(t, place.Sequence, w.currentRevision().OrderingKey.Sequence, "who has left the queue returns to its end")

			for range 3 { // all of its retries
				w.runFailingAttempt("unexpected EOF")
				w.advanceClock(time.Hour)
				w.reconcile()
			}
			assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
			assert.EqualValues(t, 4, w.status().LastAttempt)
			w.reconcile()
			assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase, "it starts over once for each change")
		})
	}
	t.Run("while it backs off", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.runFailingAttempt("unexpected EOF")
		place := w.currentRevision().OrderingKey
		w.requestRetry("now")
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
		assert.Equal(t, place, w.currentRevision().OrderingKey, "and keeps its place")
	})
	t.Run("while it backs off, by a clock that is behind", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.runFailingAttempt("unexpected EOF")
		w.requestRetry("now")
		w.reconcile()
		w.advanceClock(-time.Hour)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
	})
	t.Run("while a retry runs", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.runFailingAttempt("unexpected EOF")
		w.advanceClock(time.Hour)
		w.reconcile()
		w.startImport()
		w.requestRetry("now")
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
		assert.NotContains(t, w.status().Message, "attempt 0")
		w.failImport("unexpected EOF")
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
	})
	t.Run("not by an edit that changes no source while a retry runs", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.runFailingAttempt("unexpected EOF")
		w.advanceClock(time.Hour)
		w.reconcile()
		w.startImport()
		place := w.currentRevision().OrderingKey
		w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.Priority = 5 })
		w.reconcile()
		assert.Equal(t, place, w.currentRevision().OrderingKey)
		assert.EqualValues(t, 2, w.status().Attempts)
	})
	t.Run("once for a token of any length", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.runFailingAttempt(notFoundMessage)
		w.requestRetry(strings.Repeat("x", 1023) + "界")
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseQueued, w.status().Phase)
		w.runFailingAttempt(notFoundMessage)
		w.reconcile()
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
	})
}

// A revision can be forgotten before the ledger has seen how its attempt ended.
// If it is asked for again just then, its old slot is not one still to begin.
func TestAttemptOfForgottenRevisionIsNotRestarted(t *testing.T) {
	w := queued(t, apitest.Image("ns/a").WithURL(urlA), policyWithoutPreflight())
	w.startImport()
	w.cache.slots = nil // and stays late
	w.setURL(urlB)
	for range 3 {
		w.syncImage()
		w.reconcileCached(allWrites)
		w.removeDeletedObjects()
		w.syncImage()
		w.syncLists()
	}
	require.Len(t, w.status().Revisions, 1, "the first is forgotten")
	w.setURL(urlA)
	w.syncImage()
	w.reconcileCached(allWrites)

	w.createMissingDataVolumes()
	assert.Empty(t, w.lists.DataVolumes)
	assert.True(t, w.stepLedger().Slots[0].Ended)
	w.reconcile()
	assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
	w.stepLedger()
	require.Len(t, w.slots, 1)
	assert.EqualValues(t, 2, w.slots[0].Attempt)
	w.runImport()
	assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
}
