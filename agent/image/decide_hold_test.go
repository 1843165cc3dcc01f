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
	w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	w.deleteImage()
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)

	v := w.buildView(true) // a leader lists, and is paused
	d := decideChecked(t, v)
	require.True(t, d.Status.TearDown)
	require.NotEmpty(t, d.Delete)

	w.setHolders("ns/vm") // another one sees a machine that came
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)

	w.carryOutDecision(v, d, allWrites)
	assert.False(t, w.status().TearDown, "its write is refused")
	assert.Nil(t, w.lastDataVolume().DeletionTimestamp, "and nothing is deleted")
}

func TestTearDownIsIrreversible(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	w.deleteImage()
	w.reconcile()
	w.reconcile()
	require.True(t, w.status().TearDown)
	w.setHolders("ns/vm")
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
	assert.EqualValues(t, 1, w.status().References.Count, "it is told of all the same")
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
	require.NotNil(t, w.img, "there is nothing to delete, and it is stored first all the same")
	assert.True(t, w.status().TearDown)
	w.reconcile()
	assert.Nil(t, w.img)
}

func TestImageIsDeletedWithItsNamespace(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.runImport()
	w.setHolders("other/vm")
	w.acquireImage("other/vm")
	w.deleteImage()
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
	assert.LessOrEqual(t, w.lastDecision.RequeueAfter, 30*time.Second, "nothing tells of a namespace")
	assert.NotZero(t, w.lastDecision.RequeueAfter)

	w.namespaceTerminating = true
	w.holders[0].Pin = nil // for checkPinned: this is outside of S2
	for range 3 {
		w.reconcile()
		w.removeDeletedObjects()
	}
	w.reconcile()
	assert.Nil(t, w.img)
}

// newRevisedSimulation is an image that serves its second revision, while a machine is built
// from its first.
func newRevisedSimulation(t *testing.T, img *apitest.ImageBuilder) (w *simulation, pin v1alpha1.PinnedImage) {
	w = queued(t, img, policyWithoutPreflight())
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
	pin = *w.holders[0].Pin
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
			assert.False(t, w.lastViewLive, "nothing is asked live while the cache shows the pin")

			w.syncCaches()
			w.setHolders() // the cache does not show it yet
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
	t.Run("one that is pinned serves again", func(t *testing.T) {
		w.setURL(url)
		w.reconcile()
		assert.Equal(t, pin.Attempt, w.status().Serving.Attempt)
		w.setURL(urlB)
		w.reconcile()
		assert.EqualValues(t, 2, w.status().Serving.Attempt, "of the other, which nobody has pinned, nothing is gone yet")
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
		w.acquireImage("ns/" + url) // what serves now
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
	assert.NotNil(t, there[pin.Attempt], "the oldest, which has lost its place in the list")
	w.setHolders()
	for range 10 {
		w.finishDeletions()
	}
	assert.Len(t, image.GroupByAttempt(w.lists), 1, "all but what serves is gone")
}

func retainedNames(w *simulation) (names []string) {
	for _, h := range w.holders {
		names = append(names, h.Name)
	}
	return names
}

// CDI makes a lost claim again for its DataVolume and downloads into it, in no
// slot. A snapshot that was made of it is not lost with it.
func TestLostOldRevisionIsNotDownloadedAgain(t *testing.T) {
	for name, beyondTheList := range map[string]bool{"listed": false, "forgotten": true} {
		t.Run(name, func(t *testing.T) {
			w, pin := newRevisedSimulation(t, imageWithSnapshotClass())
			if beyondTheList {
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
	w := queued(t, imageWithSnapshotClass(), policyWithoutPreflight())
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
			w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
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
			require.False(t, w.lastDecision.DeleteImage, "a plan wants it")
			assert.NotZero(t, w.lastDecision.RequeueAfter, "and may let go of it")
			assert.LessOrEqual(t, w.lastDecision.RequeueAfter, time.Minute)

			w.plan.Keep = false
			w.syncCaches()
			w.setHolders("ns/vm") // the cache does not show it
			w.reconcileCached(allWrites)
			assert.True(t, w.lastViewLive)
			require.False(t, w.lastDecision.DeleteImage)

			w.setHolders()
			w.reconcile()
			require.False(t, w.lastDecision.DeleteImage, "its time begins anew")
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
	t.Run("retired by the plan", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.setPlannedLabel(image.PlannedLabelValue)
		w.runImport()
		w.setHolders("ns/vm")
		w.plan.DeleteAfter = ptr.To(time.Hour)
		w.advanceClock(2 * time.Hour)
		w.reconcile()
		require.False(t, w.lastDecision.DeleteImage, "it is referenced")

		w.setHolders()
		w.reconcile()
		require.False(t, w.lastDecision.DeleteImage, "its time begins when nobody references it")
		assert.LessOrEqual(t, w.lastDecision.RequeueAfter, time.Hour)
		w.advanceClock(time.Hour)
		w.plan.Keep = true
		w.cachedPlan.Keep = false
		w.reconcileCached(allWrites)
		assert.True(t, w.lastViewLive)
		require.False(t, w.lastDecision.DeleteImage, "a newer plan, that the cache does not show, wants it")

		w.plan.Keep = false
		w.reconcile()
		assert.True(t, w.lastViewLive)
		assert.True(t, w.lastDecision.DeleteImage)
		assert.True(t, w.lastDecision.ExpiredByPlan)
	})
	t.Run("retired by the plan at once", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.setPlannedLabel(image.PlannedLabelValue)
		w.runImport()
		w.plan.DeleteAfter = ptr.To(time.Duration(0))
		w.syncCaches()
		w.setHolders("ns/vm") // the cache does not show it
		w.reconcileCached(allWrites)
		assert.True(t, w.lastViewLive)
		require.False(t, w.lastDecision.DeleteImage)
		w.setHolders()
		w.reconcile()
		assert.True(t, w.lastDecision.DeleteImage)
	})
	t.Run("retired by the plan, and not the plan's", func(t *testing.T) {
		for _, label := range []string{"", "false"} {
			w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
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
		plan        time.Duration
		wantRetired bool
	}{
		"the plan's time is the shorter": {time.Minute, true},
		"the spec's time is the shorter": {3 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
			w.setPlannedLabel(image.PlannedLabelValue)
			w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.DeleteUnreferencedAfter = &metav1.Duration{Duration: time.Hour} })
			w.runImport()
			w.plan.DeleteAfter = &tt.plan
			w.advanceClock(2 * time.Hour)
			w.reconcile()
			assert.True(t, w.lastDecision.DeleteImage)
			assert.Equal(t, tt.wantRetired, w.lastDecision.ExpiredByPlan)
		})
	}
	t.Run("not unless the spec says so", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.runImport()
		w.advanceClock(1000 * time.Hour)
		w.reconcile()
		assert.False(t, w.lastDecision.DeleteImage)
		assert.Zero(t, w.lastDecision.RequeueAfter)
	})
}
