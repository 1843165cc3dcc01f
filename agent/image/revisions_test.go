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
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	old := *w.status().Serving
	oldPlace := w.currentRevision().OrderingKey

	w.advanceClock(time.Minute)
	w.setURL(urlB)
	require.Equal(t, ledger.Pending, image.QueueStateOf(w.img), "not decided yet")
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseQueued, w.status().Phase)
	assert.Equal(t, &old, w.status().Serving, "the old revision serves")
	assert.NotEqual(t, oldPlace, w.currentRevision().OrderingKey)
	assert.Zero(t, w.status().Attempts)

	w.startImport()
	assert.Equal(t, "importing, attempt 1 of 3", w.status().Message)
	assert.EqualValues(t, 1, w.status().Attempts)
	assert.EqualValues(t, 2, w.currentRevision().Attempt, "attempt numbers grow across revisions")
	assert.Equal(t, &old, w.status().Serving)

	w.completeImport()
	w.reconcile()
	assert.Equal(t, w.lastDataVolume().Name, w.status().Serving.PersistentVolumeClaim)
	assert.Empty(t, w.lastDecision.Delete, "not before the new serving state is stored")
	w.reconcile()
	assert.True(t, w.lastViewLive, "nor before VMs are listed live")
	assert.Equal(t, []string{"DataVolume " + old.PersistentVolumeClaim}, deletedNames(w.lastDecision), "the old storage is deleted once the new revision serves")
	w.finishDeletions()
	assert.Len(t, w.status().Revisions, 1, "forgotten once it is gone")
	assert.Len(t, w.lists.DataVolumes, 1)
}

func TestSupersededImportIsEnded(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
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
	assert.Equal(t, &old, w.status().Serving, "the old revision still serves")
	assert.Zero(t, w.status().Attempts, "superseded attempts do not count")
	w.finishDeletions()
	w.runImport()
	assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	assert.EqualValues(t, 3, w.status().Serving.Attempt)
}

func TestSupersededSlotWithoutStartIsEnded(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.stepLedger()
	w.setURL(urlB)
	d := w.reconcile()
	require.Len(t, d.EndedAttempts, 1)
	assert.Equal(t, v1alpha1.ReasonSuperseded, d.EndedAttempts[0].Failure.Reason)
	w.createMissingDataVolumes()
	assert.Empty(t, w.lists.DataVolumes)
	w.finishDeletions()
	assert.Len(t, w.slots, 1, "the new revision has it")
	assert.EqualValues(t, 2, w.slots[0].Attempt)
}

func TestEarlierRevisionIsServedAgain(t *testing.T) {
	t.Run("that still serves", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a").WithURL(urlA), policyWithoutPreflight())
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
		w := newQueuedSimulation(t, apitest.Image("ns/a").WithURL(urlA), policyWithoutPreflight())
		w.startImport()
		w.setURL(urlB)
		w.reconcile()
		place := w.currentRevision().OrderingKey
		w.setURL(urlA)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
		assert.Less(t, place.Sequence, w.currentRevision().OrderingKey.Sequence, "behind its former place")
		assert.Zero(t, w.status().Attempts)
		w.finishDeletions()
		require.Len(t, w.slots, 1)
		assert.EqualValues(t, 2, w.slots[0].Attempt, "the superseded attempt number is not reused")
		w.runImport()
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	})
	t.Run("before a decision", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a").WithURL(urlA), policyWithoutPreflight())
		w.startImport()
		w.setURL(urlB)
		w.setURL(urlA)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason, "its import goes on")
	})
}

func TestRevisionListIsBounded(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	serving := *w.status().Serving
	for i := range 20 {
		w.setURL(fmt.Sprintf("https://images.example.com/%d.qcow2", i))
		w.reconcile() // checks MaxRevisions
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

// The cached slots are stale: a running import must not be forgotten, or the ledger starts
// it again.
func TestRunningRevisionWithUnseenSlotIsKept(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
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
	outcome, started := image.OutcomeOf(w.img, slot)
	assert.True(t, started)
	assert.Equal(t, v1alpha1.OutcomeFailed, outcome)
}

func TestFailedImageRestartsOnRequest(t *testing.T) {
	for name, change := range map[string]func(*simulation){
		"by annotation":            func(w *simulation) { w.requestRetry("now") },
		"by the plan":              func(w *simulation) { w.setPlannedLabel(image.PlannedLabelValue); w.requestPlanRetry("now") },
		"by an edit of the source": func(w *simulation) { w.setURL(urlB) },
		"by an edit of the Secret": func(w *simulation) { w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.SecretRef = "s" }) },
		"by an edit of the headers": func(w *simulation) {
			w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.ExtraHeaders = []string{"X-Tenant: blue"} })
		},
		"by an edit of the headers' Secrets": func(w *simulation) {
			w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.SecretExtraHeaders = []string{"s"} })
		},
		"by an edit of the priority": func(w *simulation) { w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.Priority = 5 }) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
			w.runFailingAttempt(notFoundMessage)
			require.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
			place := w.currentRevision().OrderingKey
			change(w)
			w.reconcile()
			assert.Equal(t, v1alpha1.PhaseQueued, w.status().Phase)
			assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
			assert.Zero(t, w.status().Attempts)
			assert.Less(t, place.Sequence, w.currentRevision().OrderingKey.Sequence, "an image that left the queue returns to its end")

			for range 3 { // all retries
				w.runFailingAttempt("unexpected EOF")
				w.advanceClock(time.Hour)
				w.reconcile()
			}
			assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
			assert.EqualValues(t, 4, w.status().LastAttempt)
			w.reconcile()
			assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase, "it restarts once per change")
		})
	}
	t.Run("while it backs off", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.runFailingAttempt("unexpected EOF")
		place := w.currentRevision().OrderingKey
		w.requestRetry("now")
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
		assert.Equal(t, place, w.currentRevision().OrderingKey, "it keeps its place")
	})
	t.Run("while it backs off, with a clock set back", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.runFailingAttempt("unexpected EOF")
		w.requestRetry("now")
		w.reconcile()
		w.advanceClock(-time.Hour)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
	})
	t.Run("while a retry runs", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
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
	t.Run("while the first attempt runs, which fails for good", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), apitest.Policy().WithoutPreflight().RetryLimit(0))
		w.startImport()
		w.requestRetry("the file is there now")
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
		w.failImport(notFoundMessage)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
		assert.NotContains(t, w.status().Message, "attempt 0")
		w.finishDeletions()
		w.advanceClock(time.Hour)
		w.reconcile()
		w.runFailingAttempt(notFoundMessage)
		assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase, "once")
	})
	t.Run("by a corrected credential while an attempt runs, which fails for good", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), apitest.Policy().WithoutPreflight().RetryLimit(0))
		w.startImport()
		w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.SecretExtraHeaders = []string{"token"} })
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
		w.failImport(notFoundMessage)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
		w.finishDeletions()
		w.advanceClock(time.Hour)
		w.reconcile()
		w.runFailingAttempt(notFoundMessage)
		assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase, "once")
	})
	t.Run("not by an edit of another field while an attempt runs, which fails for good", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.startImport()
		w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.Priority = 5 })
		w.reconcile()
		w.failImport(notFoundMessage)
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
	})
	t.Run("not by an edit of another field while a retry runs", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
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
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
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

// A revision can be forgotten before the ledger has read how its attempt ended. If the
// revision returns just then, its old slot must not start again.
func TestAttemptOfForgottenRevisionIsNotRestarted(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a").WithURL(urlA), policyWithoutPreflight())
	w.startImport()
	w.cache.slots = nil // and stays stale
	w.setURL(urlB)
	for range 3 {
		w.syncImage()
		w.reconcileCached(allWrites)
		w.removeDeletedObjects()
		w.syncImage()
		w.syncLists()
	}
	require.Len(t, w.status().Revisions, 1, "the first revision is forgotten")
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

// The plan starts a failed image over once per token, by a live read: a stale cache may show an
// older plan.
func TestPlanStartsFailedImageOverOncePerToken(t *testing.T) {
	newFailed := func() *simulation {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.setPlannedLabel(image.PlannedLabelValue)
		w.runFailingAttempt(notFoundMessage)
		require.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
		return w
	}
	t.Run("a stale cache", func(t *testing.T) {
		w := newFailed()
		w.requestPlanRetry("2")
		w.reconcile()
		w.runFailingAttempt(notFoundMessage)
		require.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
		w.cachedPlan.Retry = "1"
		w.reconcileCached(allWrites)
		assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
		assert.Equal(t, "2", w.status().ObservedPlanRetry)
	})
	t.Run("an unknown plan", func(t *testing.T) {
		w := newFailed()
		w.plan = image.PlannedState{Keep: true, Unknown: true, Retry: "1"}
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
	})
	t.Run("an image of somebody else", func(t *testing.T) {
		w := newFailed()
		w.setPlannedLabel("false")
		w.requestPlanRetry("1")
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
		assert.Empty(t, w.status().ObservedPlanRetry)
	})
	t.Run("an image that fails later", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.setPlannedLabel(image.PlannedLabelValue)
		w.requestPlanRetry("1")
		w.reconcile()
		assert.Equal(t, "1", w.status().ObservedPlanRetry)
		w.runFailingAttempt(notFoundMessage)
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
	})
}
