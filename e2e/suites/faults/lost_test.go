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
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestDeletedDataVolumeIsRetried wants another attempt, through the queue.
func TestDeletedDataVolumeIsRetried(t *testing.T) {
	for _, class := range []string{simulator.ClassCSI, simulator.ClassLocal} {
		t.Run(class, func(t *testing.T) {
			testScene.SetPolicy(t, newPolicy("concurrency", "1"))
			history := observeTest(t)
			img := testScene.NewImage(createHomeNamespace(t), "image", "/stuck/1/200ms/a")
			img.Spec.StorageClass = class
			testScene.Create(t, img)
			dv := awaitImporting(t, img)
			require.NoError(t, testScene.Client().Delete(t.Context(), dv))
			testScene.AwaitEvent(t, img, string(v1alpha1.ReasonDataVolumeLost), "DataVolume "+dv.Name+" was deleted while it was imported")
			got := awaitSucceeded(t, img)
			assert.EqualValues(t, 2, got.Status.Serving.Attempt)
			assert.Equal(t, 2, history().Attempts(img.UID))
		})
	}
}

// TestRepeatedDataVolumeDeletionFails wants an end, with its reason.
func TestRepeatedDataVolumeDeletionFails(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("retryLimit", "1"))
	history := observeTest(t)
	img := testScene.NewImage(createHomeNamespace(t), "image", "/hang/a")
	testScene.Create(t, img)
	for range 2 {
		require.NoError(t, testScene.Client().Delete(t.Context(), awaitImporting(t, img)))
	}
	awaitFailed(t, img, v1alpha1.ReasonDataVolumeLost)
	assert.Equal(t, 2, history().Attempts(img.UID))
}

// TestLostStorageIsSyncedAgain wants it synced again, through the queue, as
// often as the policy allows in a day, and then a person asked.
func TestLostStorageIsSyncedAgain(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "1", "resyncLimit", "1"))
	history := observeTest(t)
	ns := createHomeNamespace(t)
	img := testScene.NewSnapshottedImage(ns, "image", "/ok/200ms/a")
	testScene.Create(t, img)
	lose := func(serving *v1alpha1.Serving) {
		dv := newDataVolume(serving.PersistentVolumeClaim)
		dv.Namespace = ns
		require.NoError(t, testScene.Client().Delete(t.Context(), dv))
	}
	lose(awaitSucceeded(t, img).Status.Serving)
	got := testScene.AwaitImage(t, img, isServingAttempt(2))
	testScene.AwaitEvent(t, img, string(v1alpha1.ReasonStorageLost), "storage of a finished image is gone")

	lose(got.Status.Serving)
	got = awaitFailed(t, img, v1alpha1.ReasonResyncLimit)
	assert.Contains(t, got.Status.Message, "synced again 1 times in 24 hours, the policy's resyncLimit")
	require.NotNil(t, got.Status.Serving, "its snapshot is there, and VMs can be cloned from it")
	require.True(t, testenv.Await(t, func() bool { return len(listSnapshots(t, img)) == 1 }), "what is left of the one before")
	assert.Equal(t, 2, history().Attempts(img.UID))

	testScene.Update(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"} })
	testScene.AwaitImage(t, img, isServingAttempt(3))
	assert.Equal(t, 3, history().Attempts(img.UID))
	require.True(t, testenv.Await(t, func() bool { return len(listDataVolumes(t, img)) == 1 && len(listSnapshots(t, img)) == 1 }), "what is left of those before")
}

// TestDeletedClaimIsSyncedAgain races with CDI, which makes the claim again
// for its DataVolume and downloads into it. Either that is done before the agent
// sees the loss, or it is removed and an attempt of its own is made: never both.
func TestDeletedClaimIsSyncedAgain(t *testing.T) {
	for _, class := range []string{simulator.ClassCSI, simulator.ClassLocal} {
		t.Run(class, func(t *testing.T) {
			testScene.SetPolicy(t, newPolicy("concurrency", "1"))
			history := observeTest(t)
			img := testScene.NewImage(createHomeNamespace(t), "image", "/ok/1s/a")
			img.Spec.StorageClass = class
			testScene.Create(t, img)
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: img.Namespace, Name: awaitSucceeded(t, img).Status.Serving.PersistentVolumeClaim}}
			require.NoError(t, testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(claim), claim))
			require.NoError(t, testScene.Client().Delete(t.Context(), claim))
			testScene.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
				if img.Status.Phase != v1alpha1.PhaseSucceeded || img.Status.Serving == nil {
					return false
				}
				now := &corev1.PersistentVolumeClaim{}
				key := client.ObjectKey{Namespace: img.Namespace, Name: img.Status.Serving.PersistentVolumeClaim}
				return testScene.Client().Get(t.Context(), key, now) == nil && now.UID != claim.UID && now.Status.Phase == corev1.ClaimBound
			})
			require.True(t, testenv.Await(t, func() bool { return len(listDataVolumes(t, img)) == 1 && len(slotsForUID(t, img.UID)) == 0 }))
			h := history()
			assert.LessOrEqual(t, h.Attempts(img.UID), 2)
			assert.Equal(t, 1, h.MaxRunning())
		})
	}
}

func isServingAttempt(n int32) func(*v1alpha1.VMDiskImage) bool {
	return func(img *v1alpha1.VMDiskImage) bool {
		return img.Status.Phase == v1alpha1.PhaseSucceeded && img.Status.Serving != nil && img.Status.Serving.Attempt == n
	}
}

// TestDeletedSnapshotIsRecreated wants another one, of the import that is there.
func TestDeletedSnapshotIsRecreated(t *testing.T) {
	testScene.SetPolicy(t, newPolicy())
	history := observeTest(t)
	img := testScene.NewSnapshottedImage(createHomeNamespace(t), "image", "/ok/200ms/a")
	testScene.Create(t, img)
	first := awaitSucceeded(t, img).Status.Serving
	snapshots := listSnapshots(t, img)
	require.Len(t, snapshots, 1)
	require.NoError(t, testScene.Client().Delete(t.Context(), &snapshots[0]))
	got := testScene.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
		s := img.Status.Serving
		return img.Status.Phase == v1alpha1.PhaseSucceeded && s != nil && s.VolumeSnapshot != first.VolumeSnapshot
	})
	assert.Equal(t, first.PersistentVolumeClaim, got.Status.Serving.PersistentVolumeClaim)
	assert.Equal(t, 1, history().Attempts(img.UID))
}

// TestSnapshotNeverReadyFails wants it given up in the end, the import kept, and
// nobody held up by it: a slot covers the transfer only.
func TestSnapshotNeverReadyFails(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "1"))
	history := observeTest(t)
	ns := createHomeNamespace(t)
	img := testScene.NewSnapshottedImage(ns, "image", "/ok/200ms/a")
	img.Spec.SnapshotClass = simulator.SnapshotClassNever
	testScene.Create(t, img)
	testScene.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonSnapshotting))
	for i := range 2 {
		next := testScene.NewImage(ns, fmt.Sprintf("next-%d", i), "/ok/0s/a")
		testScene.Create(t, next)
		awaitSucceeded(t, next)
	}
	testScene.SetPolicy(t, newPolicy("concurrency", "1", "stallTimeout", "2s")) // now only: it is that of imports as well, and reaches those that wait
	got := awaitFailed(t, img, v1alpha1.ReasonSnapshotFailed)
	assert.Contains(t, got.Status.Message, "none of 2 VolumeSnapshots became ready within 2s")
	testScene.SetPolicy(t, newPolicy("concurrency", "1"))
	dvs := listDataVolumes(t, img)
	require.Len(t, dvs, 1)
	claim := &corev1.PersistentVolumeClaim{}
	require.NoError(t, testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(&dvs[0]), claim))
	assert.Equal(t, corev1.ClaimBound, claim.Status.Phase, "the import is kept")
	require.True(t, testenv.Await(t, func() bool { return len(listSnapshots(t, img)) == 0 }), "what was given up goes")

	testScene.Update(t, img, func() { img.Spec.SnapshotClass = simulator.SnapshotClass })
	got = awaitSucceeded(t, img)
	assert.Equal(t, claim.Name, got.Status.Serving.PersistentVolumeClaim)
	assert.Equal(t, 1, history().Attempts(img.UID))
}
