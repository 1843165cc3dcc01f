package image_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestTearDownIsStoredBeforeDeletion(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	w.deleteImage()
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)

	v := w.buildView(true) // a leader lists holders, and is paused
	d := decideChecked(t, v)
	require.True(t, d.Status.TearDown)
	require.NotEmpty(t, d.Delete)

	w.setHolders("ns/vm") // another leader sees a new VM
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)

	w.carryOutDecision(v, d, allWrites)
	assert.False(t, w.status().TearDown, "the write of the paused leader conflicts")
	assert.Nil(t, w.lastDataVolume().DeletionTimestamp, "nothing is deleted")
}

// newTornDownSimulation returns a simulation whose image is deleted and tears down its storage.
func newTornDownSimulation(t *testing.T) *simulation {
	t.Helper()
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	w.deleteImage()
	w.reconcile()
	w.reconcile()
	require.True(t, w.status().TearDown)
	return w
}

func TestTearDownIsIrreversible(t *testing.T) {
	w := newTornDownSimulation(t)
	w.setHolders("ns/vm")
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
	assert.EqualValues(t, 1, w.status().References.Count, "the holder is counted nevertheless")
	assert.Equal(t, ledger.NotQueued, image.QueueStateOf(w.img))
	w.removeDeletedObjects()
	w.reconcile()
	assert.Nil(t, w.img)
}

func TestFinalizerIsRemovedOnlyAfterStoredTearDown(t *testing.T) {
	w := newSimulation(t, apitest.Image("ns/a").WithFinalizer(), apitest.Policy().Obj())
	w.deleteImage()
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
	w.reconcile()
	require.NotNil(t, w.img, "tearDown is stored although there is nothing to delete")
	assert.True(t, w.status().TearDown)
	w.reconcile()
	assert.Nil(t, w.img)
}

func TestImageIsDeletedWithItsNamespace(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	w.setHolders("other/vm")
	w.acquireImage("other/vm")
	w.deleteImage()
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
	assert.LessOrEqual(t, w.lastDecision.RequeueAfter, 30*time.Second, "namespaces are not watched")
	assert.NotZero(t, w.lastDecision.RequeueAfter)

	w.namespaceTerminating = true
	w.holders[0].Pins = nil // for checkPinned: S2 does not apply
	for range 3 {
		w.reconcile()
		w.removeDeletedObjects()
	}
	w.reconcile()
	assert.Nil(t, w.img)
}

// newRevisedSimulation returns a simulation whose image serves its second revision while
// a VM is built from its first one.
func newRevisedSimulation(t *testing.T, img *apitest.ImageBuilder) (w *simulation, pin v1alpha1.PinnedImage) {
	w = newQueuedSimulation(t, img, policyWithoutPreflight())
	ready := func() {
		w.runImport()
		if w.lastSnapshot() != nil {
			w.markSnapshotReady()
		}
		w.reconcile()
		require.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	}
	ready()
	w.setHolders("ns/vm")
	w.acquireImage("ns/vm")
	pin = *w.holders[0].Pins[0]
	w.advanceClock(time.Minute)
	w.setURL(urlB)
	w.reconcile()
	ready()
	w.finishDeletions()
	return w, pin
}

func TestPinnedRevisionIsKept(t *testing.T) {
	for name, img := range map[string]*apitest.ImageBuilder{"claims": apitest.Image("ns/a"), "snapshots": imageWithSnapshotClass()} {
		t.Run(name, func(t *testing.T) {
			w, pin := newRevisedSimulation(t, img)
			old := image.GroupByAttempt(w.lists)[pin.Attempt]
			require.NotNil(t, old)
			assert.Nil(t, old.DataVolume.DeletionTimestamp)
			assert.Nil(t, old.Claim.DeletionTimestamp)
			if pin.VolumeSnapshot != "" {
				require.Len(t, old.Snapshots, 1)
				assert.Nil(t, old.Snapshots[0].DeletionTimestamp)
			}
			require.Len(t, w.status().Revisions, 2)
			assert.Equal(t, v1alpha1.OutcomeSucceeded, w.status().Revisions[1].Outcome)
			assert.Contains(t, w.status().Message, "kept for the VirtualMachines built from it: ns/vm")
			assert.False(t, w.lastViewLive, "no live read while the cache shows the pin")

			w.syncCaches()
			w.setHolders() // the cache does not show that yet
			w.reconcileCached(allWrites)
			assert.False(t, w.lastViewLive)
			w.reconcile()
			assert.True(t, w.lastViewLive)
			assert.Equal(t, v1alpha1.OutcomeFailed, w.status().Revisions[1].Outcome)
			assert.Equal(t, v1alpha1.ReasonSuperseded, w.status().Revisions[1].Failure.Reason)
			assert.NotEmpty(t, w.lastDecision.Delete)
			w.finishDeletions()
			assert.Len(t, w.lists.DataVolumes, 1)
			assert.Len(t, w.status().Revisions, 1)
			assert.NotContains(t, w.status().Message, "kept")
		})
	}
}

func TestPinMissingFromCacheIsRespected(t *testing.T) {
	w, _ := newRevisedSimulation(t, apitest.Image("ns/a"))
	w.syncCaches()
	w.cache.holders = nil
	before := w.img.DeepCopy()
	w.reconcileCached(allWrites)
	assert.True(t, w.lastViewLive)
	assert.Empty(t, w.lastDecision.Delete)
	assert.Equal(t, before.Status.Revisions, w.status().Revisions)
}

// A retired revision is imported anew, whatever is still there of it: somebody
// may be about to delete that.
func TestSupersededRevisionIsImportedAgain(t *testing.T) {
	w, pin := newRevisedSimulation(t, apitest.Image("ns/a"))
	url := apitest.Image("ns/a").Obj().Spec.URL
	t.Run("a pinned revision serves again", func(t *testing.T) {
		w.setURL(url)
		w.reconcile()
		assert.Equal(t, pin.Attempt, w.status().Serving.Attempt)
		w.setURL(urlB)
		w.reconcile()
		assert.EqualValues(t, 2, w.status().Serving.Attempt, "the storage of the unpinned one still exists")
	})
	w.setHolders()
	w.reconcile()
	w.setURL(url)
	w.reconcile()
	assert.EqualValues(t, 2, w.status().Serving.Attempt)
	assert.Equal(t, v1alpha1.PhaseQueued, w.status().Phase)
	w.removeDeletedObjects()
	w.reconcile()
	w.runImport()
	assert.EqualValues(t, 3, w.status().Serving.Attempt)
}

func TestPinnedAttemptOfForgottenRevisionIsKept(t *testing.T) {
	w, pin := newRevisedSimulation(t, apitest.Image("ns/a"))
	for _, url := range []string{"c", "d", "e", "f", "g"} {
		w.setHolders("ns/"+url, "ns/vm")
		w.acquireImage("ns/" + url) // the serving revision
		w.setHolders(append([]string{"ns/" + url}, retainedNames(w)...)...)
		w.advanceClock(time.Minute)
		w.setURL("https://images.example.com/" + url)
		w.reconcile()
		w.runImport()
		w.finishDeletions()
		require.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
		require.LessOrEqual(t, len(w.status().Revisions), v1alpha1.MaxRevisions)
	}
	there := image.GroupByAttempt(w.lists)
	assert.NotNil(t, there[pin.Attempt], "the oldest revision, which is no longer listed")
	w.setHolders()
	for range 10 {
		w.finishDeletions()
	}
	assert.Len(t, image.GroupByAttempt(w.lists), 1, "only the serving attempt is left")
}

func retainedNames(w *simulation) (names []string) {
	for _, h := range w.holders {
		names = append(names, h.Name)
	}
	return names
}

// CDI recreates a lost claim for its DataVolume and downloads into it, without a slot. A
// snapshot of the claim survives.
func TestLostOldRevisionIsNotDownloadedAgain(t *testing.T) {
	for name, forgotten := range map[string]bool{"listed": false, "forgotten": true} {
		t.Run(name, func(t *testing.T) {
			w, pin := newRevisedSimulation(t, imageWithSnapshotClass())
			if forgotten {
				w.img.Status.Revisions = w.img.Status.Revisions[:1]
				w.bumpResourceVersion()
			}
			w.findClaim(pin.PersistentVolumeClaim).Status.Phase = corev1.ClaimLost
			w.reconcile()
			assert.True(t, w.lastViewLive)
			assert.Equal(t, []string{"DataVolume " + pin.PersistentVolumeClaim}, deletedNames(w.lastDecision))
			w.finishDeletions()
			left := image.GroupByAttempt(w.lists)[pin.Attempt]
			require.NotNil(t, left)
			assert.Nil(t, left.Claim)
			require.Len(t, left.Snapshots, 1)
			assert.Equal(t, pin.VolumeSnapshot, left.Snapshots[0].Name)
			assert.Nil(t, left.Snapshots[0].DeletionTimestamp)
			assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
			w.setHolders()
			w.finishDeletions()
			assert.Len(t, image.GroupByAttempt(w.lists), 1)
		})
	}
}

func TestPinnedOlderSnapshotIsKept(t *testing.T) {
	w := newQueuedSimulation(t, imageWithSnapshotClass(), policyWithoutPreflight())
	w.runImport()
	w.markSnapshotReady()
	w.reconcile()
	w.setHolders("ns/vm")
	w.acquireImage("ns/vm")
	first := w.lastSnapshot().Name
	w.advanceClock(time.Minute)
	w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.SnapshotClass = "other" })
	w.reconcile()
	w.markSnapshotReady()
	w.finishDeletions()
	require.NotEqual(t, first, w.status().Serving.VolumeSnapshot)
	require.Len(t, w.lists.Snapshots, 2)
	assert.Nil(t, w.lists.Snapshots[0].DeletionTimestamp)
	w.setHolders()
	w.reconcile()
	assert.Equal(t, []string{"VolumeSnapshot " + first}, deletedNames(w.lastDecision))
}

func TestUnreferencedImageExpires(t *testing.T) {
	reach := map[string]func(*simulation){
		"queued": func(*simulation) {}, "importing": (*simulation).startImport, "ready": (*simulation).runImport,
		"failed": func(w *simulation) { w.runFailingAttempt(notFoundMessage) },
	}
	for name, do := range reach {
		t.Run(name, func(t *testing.T) {
			w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
			w.setHolders("ns/vm")
			w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.DeleteUnreferencedAfter = &metav1.Duration{Duration: time.Hour} })
			do(w)
			w.advanceClock(2 * time.Hour)
			w.reconcile()
			require.False(t, w.lastDecision.DeleteImage, "it is referenced")

			w.setHolders()
			w.reconcile()
			require.False(t, w.lastDecision.DeleteImage)
			assert.LessOrEqual(t, w.lastDecision.RequeueAfter, time.Hour)
			assert.NotZero(t, w.lastDecision.RequeueAfter)
			w.advanceClock(59 * time.Minute)
			w.reconcile()
			require.False(t, w.lastDecision.DeleteImage)
			assert.LessOrEqual(t, w.lastDecision.RequeueAfter, time.Minute)

			w.advanceClock(time.Minute)
			w.plan.Keep = true
			w.reconcile()
			require.False(t, w.lastDecision.DeleteImage, "the plan keeps it")
			assert.NotZero(t, w.lastDecision.RequeueAfter, "the plan may stop keeping it")
			assert.LessOrEqual(t, w.lastDecision.RequeueAfter, time.Minute)

			w.plan.Keep = false
			w.syncCaches()
			w.setHolders("ns/vm") // the cache does not show that
			w.reconcileCached(allWrites)
			assert.True(t, w.lastViewLive)
			require.False(t, w.lastDecision.DeleteImage)

			w.setHolders()
			w.reconcile()
			require.False(t, w.lastDecision.DeleteImage, "the lifetime restarts")
			w.advanceClock(time.Hour)
			w.reconcile()
			assert.True(t, w.lastViewLive)
			assert.True(t, w.lastDecision.DeleteImage)
			w.deleteImage()
			w.reconcile()
			assert.False(t, w.lastDecision.DeleteImage)
			assert.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
		})
	}
	t.Run("the API server's clock is behind", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.DeleteUnreferencedAfter = &metav1.Duration{Duration: time.Hour} })
		w.runImport()
		w.advanceClock(time.Hour)
		w.clockAhead = 5 * time.Minute
		w.reconcileCached(allWrites)
		assert.False(t, w.lastViewLive, "nothing is read live to wait")
		require.False(t, w.lastDecision.DeleteImage)
		assert.True(t, w.lastDecision.AwaitsServerClock)
		assert.LessOrEqual(t, w.lastDecision.RequeueAfter, 5*time.Minute)
		w.clockAhead = 24 * time.Hour
		w.reconcile()
		require.False(t, w.lastDecision.DeleteImage)
		assert.Equal(t, image.ClockRecheckInterval, w.lastDecision.RequeueAfter, "it may be corrected before")
		w.clockAhead = 0
		w.reconcile()
		assert.True(t, w.lastDecision.DeleteImage)
		assert.False(t, w.lastDecision.AwaitsServerClock)
	})
	// It would expire as soon as the clock is corrected.
	t.Run("unreferenced by a clock of long ago", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.setHolders("ns/vm")
		w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.DeleteUnreferencedAfter = &metav1.Duration{Duration: time.Hour} })
		w.advanceClock(365 * 24 * time.Hour)
		w.runImport()
		ready := w.now
		w.advanceClock(-10 * 365 * 24 * time.Hour)
		w.setHolders()
		w.reconcile()
		w.advanceClock(ready.Sub(w.now) + 59*time.Minute)
		w.reconcile()
		require.False(t, w.lastDecision.DeleteImage)
		w.advanceClock(time.Hour)
		w.reconcile()
		assert.True(t, w.lastDecision.DeleteImage)
	})
	t.Run("expired by the plan", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.setPlannedLabel(image.PlannedLabelValue)
		w.runImport()
		w.setHolders("ns/vm")
		w.plan.DeleteAfter = ptr.To(time.Hour)
		w.advanceClock(2 * time.Hour)
		w.reconcile()
		require.False(t, w.lastDecision.DeleteImage, "it is referenced")

		w.setHolders()
		w.reconcile()
		require.False(t, w.lastDecision.DeleteImage, "the lifetime starts when it is unreferenced")
		assert.LessOrEqual(t, w.lastDecision.RequeueAfter, time.Hour)
		w.advanceClock(time.Hour)
		w.plan.Keep = true
		w.cachedPlan.Keep = false
		w.reconcileCached(allWrites)
		assert.True(t, w.lastViewLive)
		require.False(t, w.lastDecision.DeleteImage, "a newer plan, missing from the cache, keeps it")

		w.plan.Keep = false
		w.reconcile()
		assert.True(t, w.lastViewLive)
		assert.True(t, w.lastDecision.DeleteImage)
		assert.True(t, w.lastDecision.ExpiredByPlan)
	})
	t.Run("expired by the plan at once", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.setPlannedLabel(image.PlannedLabelValue)
		w.runImport()
		w.plan.DeleteAfter = ptr.To(time.Duration(0))
		w.syncCaches()
		w.setHolders("ns/vm") // the cache does not show that
		w.reconcileCached(allWrites)
		assert.True(t, w.lastViewLive)
		require.False(t, w.lastDecision.DeleteImage)
		w.setHolders()
		w.reconcile()
		assert.True(t, w.lastDecision.DeleteImage)
	})
	t.Run("not planned, so not expired by the plan", func(t *testing.T) {
		for _, label := range []string{"", "false"} {
			w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
			w.setPlannedLabel(label)
			w.runImport()
			w.plan.DeleteAfter = ptr.To(time.Duration(0))
			w.advanceClock(1000 * time.Hour)
			w.reconcile()
			assert.False(t, w.lastDecision.DeleteImage)
			assert.Zero(t, w.lastDecision.RequeueAfter)
		}
	})
	for name, tt := range map[string]struct {
		plan       time.Duration
		wantByPlan bool
	}{
		"the plan's lifetime is shorter": {time.Minute, true},
		"the spec's lifetime is shorter": {3 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
			w.setPlannedLabel(image.PlannedLabelValue)
			w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.DeleteUnreferencedAfter = &metav1.Duration{Duration: time.Hour} })
			w.runImport()
			w.plan.DeleteAfter = &tt.plan
			w.advanceClock(2 * time.Hour)
			w.reconcile()
			assert.True(t, w.lastDecision.DeleteImage)
			assert.Equal(t, tt.wantByPlan, w.lastDecision.ExpiredByPlan)
		})
	}
	t.Run("not without a lifetime", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.runImport()
		w.advanceClock(1000 * time.Hour)
		w.reconcile()
		assert.False(t, w.lastDecision.DeleteImage)
		assert.Zero(t, w.lastDecision.RequeueAfter)
	})
}

// A person has to end the reference of a disk that nothing deletes.
func TestOrphanedDiskIsNamed(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	w.deleteImage()
	w.setHolders("ns/vm")
	w.reconcile()
	assert.NotContains(t, w.status().Message, "orphaned")
	w.holders[0].OrphanedDisk = true
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
	assert.Contains(t, w.status().Message, "delete its DataVolume and PersistentVolumeClaim if nothing uses it, or adopt it")
	w.holders[0].UsedBy = "KubeVirt VirtualMachine ns/vm"
	w.reconcile()
	assert.Contains(t, w.status().Message, "KubeVirt VirtualMachine ns/vm still uses it, so keep it")
	assert.NotContains(t, w.status().Message, "delete its DataVolume")
}
