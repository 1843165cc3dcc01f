//go:build linux

package faults

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
	"github.com/pelotech/ot-fleet/e2e/simulator"
)

// TestDataVolumeDeletedWhileImporting wants another attempt, through the queue.
func TestDataVolumeDeletedWhileImporting(t *testing.T) {
	for _, class := range []string{simulator.ClassCSI, simulator.ClassLocal} {
		t.Run(class, func(t *testing.T) {
			place.SetPolicy(t, policy("concurrency", "1"))
			history := observed(t)
			img := place.Image(home(t), "image", "/stuck/1/200ms/a")
			img.Spec.StorageClass = class
			place.Create(t, img)
			dv := importing(t, img)
			require.NoError(t, place.Client().Delete(t.Context(), dv))
			place.WantEvent(t, img, string(v1alpha1.ReasonDataVolumeLost), "DataVolume "+dv.Name+" was deleted while it was imported")
			got := succeeded(t, img)
			assert.EqualValues(t, 2, got.Status.Serving.Attempt)
			assert.Equal(t, 2, history().Attempts(img.UID))
		})
	}
}

// TestDataVolumeKeepsBeingDeleted wants an end, with its reason.
func TestDataVolumeKeepsBeingDeleted(t *testing.T) {
	place.SetPolicy(t, policy("retryLimit", "1"))
	history := observed(t)
	img := place.Image(home(t), "image", "/hang/a")
	place.Create(t, img)
	for range 2 {
		require.NoError(t, place.Client().Delete(t.Context(), importing(t, img)))
	}
	failed(t, img, v1alpha1.ReasonDataVolumeLost)
	assert.Equal(t, 2, history().Attempts(img.UID))
}

// TestStorageOfAFinishedImageLost wants it synced again, through the queue, as
// often as the policy allows in a day, and then a person asked.
func TestStorageOfAFinishedImageLost(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "1", "resyncLimit", "1"))
	history := observed(t)
	ns := home(t)
	img := place.Snapshotted(ns, "image", "/ok/200ms/a")
	place.Create(t, img)
	lose := func(serving *v1alpha1.Serving) {
		dv := dataVolume(serving.PersistentVolumeClaim)
		dv.Namespace = ns
		require.NoError(t, place.Client().Delete(t.Context(), dv))
	}
	lose(succeeded(t, img).Status.Serving)
	got := place.Eventually(t, img, servesAttempt(2))
	place.WantEvent(t, img, string(v1alpha1.ReasonStorageLost), "storage of a finished image is gone")

	lose(got.Status.Serving)
	got = failed(t, img, v1alpha1.ReasonResyncLimit)
	assert.Contains(t, got.Status.Message, "synced again 1 times in 24 hours, the policy's resyncLimit")
	require.NotNil(t, got.Status.Serving, "its snapshot is there, and VMs can be cloned from it")
	require.True(t, scene.Await(t, func() bool { return len(snapshotsOf(t, img)) == 1 }), "what is left of the one before")
	assert.Equal(t, 2, history().Attempts(img.UID))

	place.Change(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"} })
	place.Eventually(t, img, servesAttempt(3))
	assert.Equal(t, 3, history().Attempts(img.UID))
	require.True(t, scene.Await(t, func() bool { return len(dataVolumesOf(t, img)) == 1 && len(snapshotsOf(t, img)) == 1 }), "what is left of those before")
}

// TestClaimOfAFinishedImageDeleted races with CDI, which makes the claim again
// for its DataVolume and downloads into it. Either that is done before the agent
// sees the loss, or it is removed and an attempt of its own is made: never both.
func TestClaimOfAFinishedImageDeleted(t *testing.T) {
	for _, class := range []string{simulator.ClassCSI, simulator.ClassLocal} {
		t.Run(class, func(t *testing.T) {
			place.SetPolicy(t, policy("concurrency", "1"))
			history := observed(t)
			img := place.Image(home(t), "image", "/ok/1s/a")
			img.Spec.StorageClass = class
			place.Create(t, img)
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: img.Namespace, Name: succeeded(t, img).Status.Serving.PersistentVolumeClaim}}
			require.NoError(t, place.Client().Get(t.Context(), client.ObjectKeyFromObject(claim), claim))
			require.NoError(t, place.Client().Delete(t.Context(), claim))
			place.Eventually(t, img, func(img *v1alpha1.VMDiskImage) bool {
				if img.Status.Phase != v1alpha1.PhaseSucceeded || img.Status.Serving == nil {
					return false
				}
				now := &corev1.PersistentVolumeClaim{}
				key := client.ObjectKey{Namespace: img.Namespace, Name: img.Status.Serving.PersistentVolumeClaim}
				return place.Client().Get(t.Context(), key, now) == nil && now.UID != claim.UID && now.Status.Phase == corev1.ClaimBound
			})
			require.True(t, scene.Await(t, func() bool { return len(dataVolumesOf(t, img)) == 1 && len(slotsOf(t, img.UID)) == 0 }))
			h := history()
			assert.LessOrEqual(t, h.Attempts(img.UID), 2)
			assert.Equal(t, 1, h.MostRunning())
		})
	}
}

func servesAttempt(n int32) func(*v1alpha1.VMDiskImage) bool {
	return func(img *v1alpha1.VMDiskImage) bool {
		return img.Status.Phase == v1alpha1.PhaseSucceeded && img.Status.Serving != nil && img.Status.Serving.Attempt == n
	}
}

// TestSnapshotDeleted wants another one, of the import that is there.
func TestSnapshotDeleted(t *testing.T) {
	place.SetPolicy(t, policy())
	history := observed(t)
	img := place.Snapshotted(home(t), "image", "/ok/200ms/a")
	place.Create(t, img)
	first := succeeded(t, img).Status.Serving
	snapshots := snapshotsOf(t, img)
	require.Len(t, snapshots, 1)
	require.NoError(t, place.Client().Delete(t.Context(), &snapshots[0]))
	got := place.Eventually(t, img, func(img *v1alpha1.VMDiskImage) bool {
		s := img.Status.Serving
		return img.Status.Phase == v1alpha1.PhaseSucceeded && s != nil && s.VolumeSnapshot != first.VolumeSnapshot
	})
	assert.Equal(t, first.PersistentVolumeClaim, got.Status.Serving.PersistentVolumeClaim)
	assert.Equal(t, 1, history().Attempts(img.UID))
}

// TestSnapshotNeverReady wants it given up in the end, the import kept, and
// nobody held up by it: a slot covers the transfer only.
func TestSnapshotNeverReady(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "1"))
	history := observed(t)
	ns := home(t)
	img := place.Snapshotted(ns, "image", "/ok/200ms/a")
	img.Spec.SnapshotClass = simulator.SnapshotClassNever
	place.Create(t, img)
	place.Eventually(t, img, scene.Because(v1alpha1.ReasonSnapshotting))
	for i := range 2 {
		next := place.Image(ns, fmt.Sprintf("next-%d", i), "/ok/0s/a")
		place.Create(t, next)
		succeeded(t, next)
	}
	place.SetPolicy(t, policy("concurrency", "1", "stallTimeout", "2s")) // now only: it is that of imports as well, and reaches those that wait
	got := failed(t, img, v1alpha1.ReasonSnapshotFailed)
	assert.Contains(t, got.Status.Message, "none of 2 VolumeSnapshots became ready within 2s")
	place.SetPolicy(t, policy("concurrency", "1"))
	dvs := dataVolumesOf(t, img)
	require.Len(t, dvs, 1)
	claim := &corev1.PersistentVolumeClaim{}
	require.NoError(t, place.Client().Get(t.Context(), client.ObjectKeyFromObject(&dvs[0]), claim))
	assert.Equal(t, corev1.ClaimBound, claim.Status.Phase, "the import is kept")
	require.True(t, scene.Await(t, func() bool { return len(snapshotsOf(t, img)) == 0 }), "what was given up goes")

	place.Change(t, img, func() { img.Spec.SnapshotClass = simulator.SnapshotClass })
	got = succeeded(t, img)
	assert.Equal(t, claim.Name, got.Status.Serving.PersistentVolumeClaim)
	assert.Equal(t, 1, history().Attempts(img.UID))
}
