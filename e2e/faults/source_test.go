//go:build linux

package faults

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

func point(t *testing.T, img *v1alpha1.VMDiskImage, path string) {
	t.Helper()
	place.Change(t, img, func() { img.Spec.URL = place.Source.URL + path })
}

func TestSourceChangedWhileQueued(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "0"))
	history := observed(t)
	img := place.Image(home(t), "image", "/notfound/100ms/a")
	place.Create(t, img)
	place.Eventually(t, img, scene.Because(v1alpha1.ReasonPaused))
	point(t, img, "/ok/100ms/b")
	place.SetPolicy(t, policy("concurrency", "1"))
	got := succeeded(t, img)
	assert.Equal(t, place.Source.URL+"/ok/100ms/b", got.Status.Revisions[0].Source)
	assert.Equal(t, 1, history().Attempts(img.UID))
	require.True(t, scene.Await(t, func() bool { return len(revisions(t, img)) == 1 }), "the old one is forgotten")
}

func revisions(t *testing.T, img *v1alpha1.VMDiskImage) []v1alpha1.RevisionStatus {
	t.Helper()
	got := &v1alpha1.VMDiskImage{}
	require.NoError(t, place.Client().Get(t.Context(), client.ObjectKeyFromObject(img), got))
	return got.Status.Revisions
}

// TestSourceChangedWhileImporting wants the import of the old source ended, and
// its slot given back before the new one starts.
func TestSourceChangedWhileImporting(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "1"))
	history := observed(t)
	img := place.Image(home(t), "image", "/hang/a")
	place.Create(t, img)
	old := importing(t, img)
	point(t, img, "/ok/200ms/b")
	succeeded(t, img)
	place.WantEvent(t, img, string(v1alpha1.ReasonSuperseded), "the source was changed while it was imported")
	place.Gone(t, old)
	require.True(t, scene.Await(t, func() bool { return len(revisions(t, img)) == 1 }))
	h := history()
	assert.Equal(t, 2, h.Attempts(img.UID))
	assert.Equal(t, 1, h.MostRunning())
}

// TestSourceChangedAfterSuccess wants the old revision to serve until the new
// one is ready, and its storage to go then.
func TestSourceChangedAfterSuccess(t *testing.T) {
	place.SetPolicy(t, policy())
	history := observed(t)
	img := place.Snapshotted(home(t), "image", "/ok/100ms/a")
	place.Create(t, img)
	old := succeeded(t, img).Status.Serving
	point(t, img, "/ok/2s/b")
	got := place.Eventually(t, img, func(img *v1alpha1.VMDiskImage) bool {
		return img.Status.Phase == v1alpha1.PhaseSyncing && img.Status.Revision != old.Revision
	})
	require.Equal(t, old.VolumeSnapshot, got.Status.Serving.VolumeSnapshot)
	claim := &corev1.PersistentVolumeClaim{}
	require.NoError(t, place.Client().Get(t.Context(), client.ObjectKey{Namespace: img.Namespace, Name: old.PersistentVolumeClaim}, claim))

	got = succeeded(t, img)
	require.NotNil(t, got.Status.Serving)
	assert.Equal(t, got.Status.Revision, got.Status.Serving.Revision)
	place.Gone(t, claim)
	require.True(t, scene.Await(t, func() bool { return len(snapshotsOf(t, img)) == 1 && len(dataVolumesOf(t, img)) == 1 }))
	assert.Equal(t, 2, history().Attempts(img.UID))
}

// TestSourceChangedForOneThatFails wants the old revision to serve on.
func TestSourceChangedForOneThatFails(t *testing.T) {
	place.SetPolicy(t, policy())
	history := observed(t)
	img := place.Snapshotted(home(t), "image", "/ok/100ms/a")
	place.Create(t, img)
	old := succeeded(t, img).Status.Serving
	point(t, img, "/notfound/100ms/b")
	got := failed(t, img, v1alpha1.ReasonNotFound)
	require.NotNil(t, got.Status.Serving)
	assert.Equal(t, old.VolumeSnapshot, got.Status.Serving.VolumeSnapshot)
	point(t, img, "/ok/100ms/c")
	got = succeeded(t, img)
	assert.NotEqual(t, old.Revision, got.Status.Serving.Revision)
	assert.Equal(t, 3, history().Attempts(img.UID))
	require.True(t, scene.Await(t, func() bool { return len(snapshotsOf(t, img)) == 1 && len(dataVolumesOf(t, img)) == 1 }))
}

// TestSourceChangedThereAndBack wants nothing downloaded that is there already.
func TestSourceChangedThereAndBack(t *testing.T) {
	t.Run("from one that is there", func(t *testing.T) {
		place.SetPolicy(t, policy())
		history := observed(t)
		img := place.Snapshotted(home(t), "image", "/ok/100ms/a")
		place.Create(t, img)
		old := succeeded(t, img).Status.Serving
		point(t, img, "/hang/b")
		place.Eventually(t, img, scene.Because(v1alpha1.ReasonImporting))
		point(t, img, "/ok/100ms/a")
		got := succeeded(t, img)
		assert.Equal(t, old.VolumeSnapshot, got.Status.Serving.VolumeSnapshot)
		require.True(t, scene.Await(t, func() bool { return len(slotsOf(t, img.UID)) == 0 && len(dataVolumesOf(t, img)) == 1 }))
		assert.LessOrEqual(t, history().Attempts(img.UID), 2)
	})
	t.Run("from one that was being imported", func(t *testing.T) {
		place.SetPolicy(t, policy("concurrency", "1"))
		history := observed(t)
		img := place.Image(home(t), "image", "/ok/10s/a")
		place.Create(t, img)
		importing(t, img)
		point(t, img, "/hang/b")
		point(t, img, "/ok/10s/a")
		succeeded(t, img)
		require.True(t, scene.Await(t, func() bool { return len(slotsOf(t, img.UID)) == 0 && len(dataVolumesOf(t, img)) == 1 }))
		h := history()
		assert.LessOrEqual(t, h.Attempts(img.UID), 3)
		assert.Equal(t, 1, h.MostRunning())
	})
}

// TestSourceChangedAgainAndAgain wants the list of revisions bounded, and only
// the last one left.
func TestSourceChangedAgainAndAgain(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "1"))
	history := observed(t)
	img := place.Snapshotted(home(t), "image", "/ok/100ms/0")
	place.Create(t, img)
	succeeded(t, img)
	for i := range 8 {
		point(t, img, fmt.Sprintf("/hang/%d", i))
		got := place.Eventually(t, img, func(img *v1alpha1.VMDiskImage) bool {
			return img.Status.ObservedGeneration == img.Generation && (i%3 != 0 || img.Status.Reason == v1alpha1.ReasonImporting)
		})
		assert.LessOrEqual(t, len(got.Status.Revisions), v1alpha1.MaxRevisions)
		require.NotNil(t, got.Status.Serving)
	}
	point(t, img, "/ok/100ms/last")
	succeeded(t, img)
	require.True(t, scene.Await(t, func() bool {
		return len(revisions(t, img)) == 1 && len(dataVolumesOf(t, img)) == 1 && len(snapshotsOf(t, img)) == 1
	}))
	h := history()
	assert.Equal(t, 1, h.MostRunning())
	assert.Equal(t, []types.UID{img.UID}, h.StartOrder())
}
