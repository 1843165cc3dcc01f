//go:build linux

package agent

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

// TestDeletedDataVolumeIsRetried wants another attempt that goes through the queue.
func TestDeletedDataVolumeIsRetried(t *testing.T) {
	testenv.RunInTurn(t, 17)
	for _, class := range []string{simulator.ClassCSI, simulator.ClassLocal} {
		t.Run(class, func(t *testing.T) {
			history := observeUnderPolicy(t, "concurrency", "1")
			img := env.NewImage(env.CreateHomeNamespace(t), "image", "/stuck/1/200ms/a")
			img.Spec.StorageClass = class
			env.Create(t, img)
			dv := env.AwaitImporting(t, img)
			require.NoError(t, env.Client().Delete(t.Context(), dv))
			env.AwaitEvent(t, img, string(v1alpha1.ReasonDataVolumeLost), "DataVolume "+dv.Name+" was deleted while it was imported")
			got := env.AwaitSucceeded(t, img)
			assert.EqualValues(t, 2, got.Status.Serving.Attempt)
			assert.Equal(t, 2, history().Attempts(img.UID))
		})
	}
}

// TestRepeatedDataVolumeDeletionFails wants the image to fail after the last attempt.
func TestRepeatedDataVolumeDeletionFails(t *testing.T) {
	testenv.RunInTurn(t, 19)
	history := observeUnderPolicy(t, "retryLimit", "1")
	img := createImage(t, "/hang/a")
	for range 2 {
		require.NoError(t, env.Client().Delete(t.Context(), env.AwaitImporting(t, img)))
	}
	env.AwaitFailed(t, img, v1alpha1.ReasonDataVolumeLost)
	assert.Equal(t, 2, history().Attempts(img.UID))
}

// TestLostStorageIsSyncedAgain wants a lost image to be synced again through the queue, as
// often as the policy allows in a day, and then to fail until a person acts.
func TestLostStorageIsSyncedAgain(t *testing.T) {
	testenv.RunInTurn(t, 18)
	history := observeUnderPolicy(t, "concurrency", "1", "resyncLimit", "1")
	ns := env.CreateHomeNamespace(t)
	img := env.NewSnapshottedImage(ns, "image", "/ok/200ms/a")
	env.Create(t, img)
	lose := func(serving *v1alpha1.Serving) {
		dv := newDataVolume(serving.PersistentVolumeClaim)
		dv.Namespace = ns
		require.NoError(t, env.Client().Delete(t.Context(), dv))
	}
	lose(env.AwaitSucceeded(t, img).Status.Serving)
	got := env.AwaitImage(t, img, isServingAttempt(2))
	env.AwaitEvent(t, img, string(v1alpha1.ReasonStorageLost), "storage of a finished image is gone")

	lose(got.Status.Serving)
	got = env.AwaitFailed(t, img, v1alpha1.ReasonResyncLimit)
	assert.Contains(t, got.Status.Message, "synced again 1 times in 24 hours, the policy's resyncLimit")
	require.NotNil(t, got.Status.Serving, "its snapshot exists, and VMs can be cloned from it")
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(listSnapshots(t, img)) == 1 }), "storage of the former attempt is left")
	assert.Equal(t, 2, history().Attempts(img.UID))

	env.Update(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"} })
	env.AwaitImage(t, img, isServingAttempt(3))
	assert.Equal(t, 3, history().Attempts(img.UID))
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(env.ListDataVolumes(t, img)) == 1 && len(listSnapshots(t, img)) == 1 }), "storage of former attempts is left")
}

// TestDeletedClaimIsSyncedAgain races with CDI, which recreates the claim of its DataVolume
// and downloads into it. Either CDI finishes before the agent sees the loss, or the agent
// deletes the DataVolume and makes an attempt of its own: never both.
func TestDeletedClaimIsSyncedAgain(t *testing.T) {
	testenv.RunInTurn(t, 16)
	for _, class := range []string{simulator.ClassCSI, simulator.ClassLocal} {
		t.Run(class, func(t *testing.T) {
			history := observeUnderPolicy(t, "concurrency", "1")
			img := env.NewImage(env.CreateHomeNamespace(t), "image", "/ok/1s/a")
			img.Spec.StorageClass = class
			served := env.ImportImage(t, img).Status.Serving
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: img.Namespace, Name: served.PersistentVolumeClaim}}
			require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(claim), claim))
			require.NoError(t, env.Client().Delete(t.Context(), claim))
			env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
				if img.Status.Phase != v1alpha1.PhaseSucceeded || img.Status.Serving == nil {
					return false
				}
				now := &corev1.PersistentVolumeClaim{}
				key := client.ObjectKey{Namespace: img.Namespace, Name: img.Status.Serving.PersistentVolumeClaim}
				return env.Client().Get(t.Context(), key, now) == nil && now.UID != claim.UID && now.Status.Phase == corev1.ClaimBound
			})
			require.True(t, testenv.AwaitCondition(t, func() bool { return len(env.ListDataVolumes(t, img)) == 1 && len(slotsForUID(t, img.UID)) == 0 }))
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

// TestDeletedSnapshotIsRecreated wants a new snapshot of the existing import.
func TestDeletedSnapshotIsRecreated(t *testing.T) {
	history := observeUnderPolicy(t)
	img := env.NewSnapshottedImage(env.CreateHomeNamespace(t), "image", "/ok/200ms/a")
	first := env.ImportImage(t, img).Status.Serving
	snapshots := listSnapshots(t, img)
	require.Len(t, snapshots, 1)
	require.NoError(t, env.Client().Delete(t.Context(), &snapshots[0]))
	got := env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
		s := img.Status.Serving
		return img.Status.Phase == v1alpha1.PhaseSucceeded && s != nil && s.VolumeSnapshot != first.VolumeSnapshot
	})
	assert.Equal(t, first.PersistentVolumeClaim, got.Status.Serving.PersistentVolumeClaim)
	assert.Equal(t, 1, history().Attempts(img.UID))
}

// TestSnapshotNeverReadyFails wants the image to fail and its import to be kept. Meanwhile
// other images go on: a slot covers the transfer only.
func TestSnapshotNeverReadyFails(t *testing.T) {
	testenv.RunInTurn(t, 25)
	history := observeUnderPolicy(t, "concurrency", "1")
	ns := env.CreateHomeNamespace(t)
	img := env.NewSnapshottedImage(ns, "image", "/ok/200ms/a")
	img.Spec.SnapshotClass = simulator.SnapshotClassNever
	env.Create(t, img)
	env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonSnapshotting))
	for i := range 2 {
		next := env.NewImage(ns, fmt.Sprintf("next-%d", i), "/ok/0s/a")
		env.Create(t, next)
		env.AwaitSucceeded(t, next)
	}
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "1", "stallTimeout", "2s", "attemptTimeout", "2s")) // not earlier: they would end the imports above as well
	got := env.AwaitFailed(t, img, v1alpha1.ReasonSnapshotFailed)
	assert.Contains(t, got.Status.Message, "none of 2 VolumeSnapshots became ready within 2s")
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "1"))
	dvs := env.ListDataVolumes(t, img)
	require.Len(t, dvs, 1)
	claim := &corev1.PersistentVolumeClaim{}
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(&dvs[0]), claim))
	assert.Equal(t, corev1.ClaimBound, claim.Status.Phase, "the import has to be kept")
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(listSnapshots(t, img)) == 0 }), "the failed snapshots are left")

	env.Update(t, img, func() { img.Spec.SnapshotClass = simulator.SnapshotClass })
	got = env.AwaitSucceeded(t, img)
	assert.Equal(t, claim.Name, got.Status.Serving.PersistentVolumeClaim)
	assert.Equal(t, 1, history().Attempts(img.UID))
}
