package image_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func imageWithSnapshotClass() *apitest.ImageBuilder {
	return apitest.Image("ns/a").WithSnapshotClass("snap")
}

func TestImportedImageIsSnapshotted(t *testing.T) {
	w := newQueuedSimulation(t, imageWithSnapshotClass(), policyWithoutPreflight())
	w.startImport()
	w.completeImport()
	d := w.reconcile()

	require.NotNil(t, d.CreateSnapshot)
	assert.Equal(t, v1alpha1.PhaseSyncing, w.status().Phase)
	assert.Equal(t, v1alpha1.ReasonSnapshotting, w.status().Reason)
	assert.True(t, image.AwaitsSnapshot(w.img))
	assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionImported).Status)
	assert.Nil(t, w.status().Serving, "not cloned from before it is ready")
	w.stepLedgerTwice()
	assert.Empty(t, w.slots, "a snapshot needs no slot")
	snap := w.lastSnapshot()
	assert.Equal(t, w.lastDataVolume().Name, *snap.Spec.Source.PersistentVolumeClaimName)
	assert.Equal(t, "snap", *snap.Spec.VolumeSnapshotClassName)
	assert.Empty(t, snap.OwnerReferences)
	assert.Equal(t, string(w.img.UID), snap.Labels[v1alpha1.LabelImageUID])
	assert.LessOrEqual(t, len(snap.Name), 63)

	for name, tt := range map[string]*apitest.SnapshotBuilder{
		"no status":          apitest.VolumeSnapshot("ns/x"),
		"not ready":          apitest.VolumeSnapshot("ns/x").ReadyToUse(false).Content("c"),
		"ready, not bound":   apitest.VolumeSnapshot("ns/x").ReadyToUse(true),
		"ready, bound to ''": apitest.VolumeSnapshot("ns/x").ReadyToUse(true).Content(""),
		"readiness unknown":  apitest.VolumeSnapshot("ns/x").Content("c"),
	} {
		w.lastSnapshot().Status = tt.Obj().Status
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonSnapshotting, w.status().Reason, name)
	}
	w.lastSnapshot().Status = apitest.VolumeSnapshot("ns/x").Error("driver is away").Obj().Status
	w.reconcile()
	assert.Contains(t, w.status().Message, "driver is away")

	w.markSnapshotReady()
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	assert.False(t, image.AwaitsSnapshot(w.img))
	assert.Equal(t, snap.Name, w.status().Serving.VolumeSnapshot)
	assert.Equal(t, "2Gi", w.status().Serving.RestoreSize.String())
	assert.Zero(t, w.lastDecision.RequeueAfter)
}

func TestSnapshotThatIsNeverReadyFails(t *testing.T) {
	w := newQueuedSimulation(t, imageWithSnapshotClass(), policyWithoutPreflight()) // retryLimit 2
	w.runImport()
	var names []string
	for range 3 {
		require.Equal(t, v1alpha1.ReasonSnapshotting, w.status().Reason)
		names = append(names, w.lastSnapshot().Name)
		w.advanceClock(15 * time.Minute)
		w.reconcile()
		w.removeDeletedObjects()
		w.reconcile()
	}
	assert.NotEqual(t, names[0], names[1])
	assert.NotEqual(t, names[1], names[2])
	assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
	assert.Equal(t, v1alpha1.ReasonSnapshotFailed, w.status().Reason)
	assert.Contains(t, w.status().Message, "none of 3 VolumeSnapshots")
	assert.Contains(t, w.status().Message, v1alpha1.AnnotationRetry)
	assert.Empty(t, w.lists.Snapshots)
	assert.Len(t, w.lists.Claims, 1, "the import is kept")
	assert.Zero(t, w.lastDecision.RequeueAfter)

	w.requestRetry("1")
	w.reconcile()
	assert.Equal(t, v1alpha1.ReasonSnapshotting, w.status().Reason)
	w.markSnapshotReady()
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	assert.EqualValues(t, 1, w.status().LastAttempt, "nothing was downloaded again")
}

func TestClaimIsServedWithoutSnapshotClass(t *testing.T) {
	w := newQueuedSimulation(t, imageWithSnapshotClass(), policyWithoutPreflight())
	w.runImport()
	w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.SnapshotClass = "" })
	d := w.reconcile()
	assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	assert.Empty(t, w.status().Serving.VolumeSnapshot)
	assert.Equal(t, []string{"VolumeSnapshot " + w.lastSnapshot().Name}, deletedNames(d))
}

func TestChangedSnapshotClassIsFollowed(t *testing.T) {
	w := newQueuedSimulation(t, imageWithSnapshotClass(), policyWithoutPreflight())
	w.runImport()
	w.markSnapshotReady()
	w.reconcile()
	first := w.lastSnapshot().Name
	for _, class := range []string{"other", "third", "fourth", "fifth", "sixth"} {
		w.advanceClock(time.Minute)
		w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.SnapshotClass = class })
		w.reconcile()
	}
	assert.Equal(t, first, w.status().Serving.VolumeSnapshot, "the old snapshot serves until the new one is ready")
	w.removeDeletedObjects()
	require.Len(t, w.lists.Snapshots, 2)
	w.advanceClock(15 * time.Minute)
	w.reconcile()
	assert.Equal(t, v1alpha1.ReasonSnapshotting, w.status().Reason, "a new class has its own attempts")
	w.removeDeletedObjects()
	w.markSnapshotReady()
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	assert.Empty(t, w.lastDecision.Delete, "not before the new serving state is stored")
	w.reconcile()
	assert.Equal(t, []string{"VolumeSnapshot " + first}, deletedNames(w.lastDecision))
	assert.EqualValues(t, 1, w.status().LastAttempt)
}

func TestMissingSnapshotClassBlocks(t *testing.T) {
	missing := &image.Blocker{Reason: v1alpha1.ReasonSnapshotClassMissing, Message: "VolumeSnapshotClass snap does not exist: create it"}
	t.Run("without a snapshot", func(t *testing.T) {
		w := newQueuedSimulation(t, imageWithSnapshotClass(), policyWithoutPreflight())
		w.startImport()
		w.completeImport()
		w.blocker = missing
		d := w.reconcile()
		assert.Nil(t, d.CreateSnapshot)
		assert.Equal(t, v1alpha1.ReasonSnapshotClassMissing, w.status().Reason)
		w.advanceClock(time.Hour)
		w.reconcile()
		w.blocker = nil
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonSnapshotting, w.status().Reason, "the wait does not count")
		w.advanceClock(14 * time.Minute)
		w.reconcile()
		assert.EqualValues(t, 1, w.currentRevision().SnapshotAttempt)
	})
	t.Run("with a ready snapshot", func(t *testing.T) {
		w := newQueuedSimulation(t, imageWithSnapshotClass(), policyWithoutPreflight())
		w.runImport()
		w.markSnapshotReady()
		w.reconcile()
		w.blocker = missing
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase, "a ready snapshot no longer needs its class")
	})
}

func TestLostStorageIsResynced(t *testing.T) {
	for name, lose := range map[string]func(*simulation){
		"the DataVolume and its claim": func(w *simulation) { w.loseObject(image.KindDataVolume, w.lastDataVolume().Name) },
		"the claim":                    func(w *simulation) { w.loseObject(image.KindPersistentVolumeClaim, w.lastDataVolume().Name) },
		"the volume": func(w *simulation) {
			w.excuses++
			w.lists.Claims[0].Status.Phase = corev1.ClaimLost
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight().ResyncLimit(2))
			w.runImport()
			for resync := int32(1); resync <= 2; resync++ {
				place := w.currentRevision().OrderingKey
				lose(w)
				w.reconcile()
				assert.True(t, w.lastViewLive)
				assert.Nil(t, w.status().Serving, "lost storage does not serve")
				if name == "the DataVolume and its claim" {
					assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
				} else {
					assert.Equal(t, v1alpha1.ReasonStorageLost, w.status().Reason, "CDI may populate its claim again: no slot before that ends")
				}
				assert.Equal(t, v1alpha1.ReasonStorageLost, w.currentRevision().Failure.Reason)
				assert.Less(t, place.Sequence, w.currentRevision().OrderingKey.Sequence, "through the queue")
				assert.Zero(t, w.status().Attempts, "with all retries left")
				w.finishDeletions()
				w.runImport()
				require.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
			}
			lose(w)
			w.reconcile()
			assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
			assert.Equal(t, v1alpha1.ReasonResyncLimit, w.status().Reason)
			assert.Contains(t, w.status().Message, "Find what deletes it")
			assert.Empty(t, w.stepLedger().Admitted)

			w.requestRetry("1")
			w.reconcile()
			w.finishDeletions()
			w.runImport()
			assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
		})
	}
	t.Run("the limit counts per 24 hours", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight().ResyncLimit(1))
		w.runImport()
		for range 5 {
			w.loseObject(image.KindDataVolume, w.lastDataVolume().Name)
			w.reconcile()
			w.runImport()
			require.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
			w.advanceClock(25 * time.Hour)
		}
	})
	t.Run("a clock that was ahead gives none back", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight().ResyncLimit(1))
		w.runImport()
		w.loseObject(image.KindDataVolume, w.lastDataVolume().Name)
		w.reconcile()
		w.runImport()
		w.advanceClock(-time.Hour)
		w.loseObject(image.KindDataVolume, w.lastDataVolume().Name)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonResyncLimit, w.status().Reason)
	})
	t.Run("not by a stale cache before it serves", func(t *testing.T) {
		w := newQueuedSimulation(t, imageWithSnapshotClass(), policyWithoutPreflight())
		w.runImport()
		w.syncCaches()
		w.cache.lists = image.ObjectLists{}
		w.reconcileCached(allWrites)
		assert.True(t, w.lastViewLive)
		assert.Equal(t, v1alpha1.ReasonSnapshotting, w.status().Reason)
	})
	t.Run("not by a stale cache beside a new revision", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.runImport()
		w.setURL(urlB)
		w.syncCaches()
		w.cache.lists = image.ObjectLists{}
		w.reconcileCached(allWrites)
		assert.True(t, w.lastViewLive)
		assert.NotNil(t, w.status().Serving)
	})
	t.Run("not by a stale cache", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.runImport()
		w.syncCaches()
		w.cache.lists = image.ObjectLists{}
		w.reconcileCached(allWrites)
		assert.True(t, w.lastViewLive)
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	})
}

func TestLostSnapshotIsRecreated(t *testing.T) {
	newSnapshotted := func(t *testing.T) *simulation {
		w := newQueuedSimulation(t, imageWithSnapshotClass(), policyWithoutPreflight().ResyncLimit(2))
		w.runImport()
		w.markSnapshotReady()
		w.reconcile()
		require.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
		return w
	}
	for name, lose := range map[string]func(*simulation){
		"gone at once": func(w *simulation) { w.loseObject(image.KindVolumeSnapshot, w.lastSnapshot().Name); w.reconcile() },
		"deletionTimestamp first": func(w *simulation) {
			w.markForDeletion(image.DeleteTarget{Kind: image.KindVolumeSnapshot, Name: w.lastSnapshot().Name, UID: w.lastSnapshot().UID})
			w.reconcile()
			w.removeDeletedObjects()
			w.reconcile()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSnapshotted(t)
			for range 2 {
				old := w.lastSnapshot().Name
				w.advanceClock(time.Minute)
				lose(w)
				assert.Nil(t, w.status().Serving)
				assert.Equal(t, v1alpha1.ReasonSnapshotting, w.status().Reason)
				assert.EqualValues(t, 1, w.status().LastAttempt, "nothing is downloaded")
				assert.False(t, strings.EqualFold(old, w.lastSnapshot().Name), "names are not reused")
				w.markSnapshotReady()
				w.reconcile()
				assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
			}
			w.advanceClock(time.Minute)
			lose(w)
			assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
			assert.Equal(t, v1alpha1.ReasonResyncLimit, w.status().Reason)

			w.advanceClock(time.Minute)
			w.requestRetry("1")
			w.reconcile()
			w.markSnapshotReady()
			w.reconcile()
			assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
			assert.EqualValues(t, 1, w.status().LastAttempt, "the import was kept")
		})
	}
}
