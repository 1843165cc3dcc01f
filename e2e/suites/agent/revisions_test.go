//go:build linux

package agent

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func setSourcePath(t *testing.T, img *v1alpha1.VMDiskImage, path string) {
	t.Helper()
	env.Update(t, img, func() { img.Spec.URL = env.Source.URL + path })
}

func TestSourceChangedWhileQueued(t *testing.T) {
	testenv.RunInTurn(t, 29)
	history := observeUnderPolicy(t, "concurrency", "0")
	img := createImage(t, "/notfound/100ms/a")
	env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonPaused))
	setSourcePath(t, img, "/ok/100ms/b")
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "1"))
	got := env.AwaitSucceeded(t, img)
	assert.Equal(t, env.Source.URL+"/ok/100ms/b", got.Status.Revisions[0].Source)
	assert.Equal(t, 1, history().Attempts(img.UID))
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(readRevisions(t, img)) == 1 }), "the former revision is left in the status")
}

func readRevisions(t *testing.T, img *v1alpha1.VMDiskImage) []v1alpha1.RevisionStatus {
	t.Helper()
	got := &v1alpha1.VMDiskImage{}
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(img), got))
	return got.Status.Revisions
}

// TestSourceChangedWhileImporting wants the import of the old source to end, and its slot to be
// freed before the new one starts.
func TestSourceChangedWhileImporting(t *testing.T) {
	testenv.RunInTurn(t, 30)
	history := observeUnderPolicy(t, "concurrency", "1")
	img := createImage(t, "/hang/a")
	old := env.AwaitImporting(t, img)
	setSourcePath(t, img, "/ok/200ms/b")
	env.AwaitSucceeded(t, img)
	env.AwaitEvent(t, img, string(v1alpha1.ReasonSuperseded), "the source was changed while it was imported")
	env.AwaitGone(t, old)
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(readRevisions(t, img)) == 1 }))
	h := history()
	assert.Equal(t, 2, h.Attempts(img.UID))
	assert.Equal(t, 1, h.MaxRunning())
}

// TestSourceChangedAfterSuccess wants the old revision to be served until the new one is ready,
// and its storage to be deleted then.
func TestSourceChangedAfterSuccess(t *testing.T) {
	history := observeUnderPolicy(t)
	img := env.NewSnapshottedImage(env.CreateHomeNamespace(t), "image", "/ok/100ms/a")
	old := env.ImportImage(t, img).Status.Serving
	setSourcePath(t, img, "/hang/b")
	got := env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
		return img.Status.Phase == v1alpha1.PhaseSyncing && img.Status.Revision != old.Revision
	})
	require.Equal(t, old.VolumeSnapshot, got.Status.Serving.VolumeSnapshot)
	claim := &corev1.PersistentVolumeClaim{}
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKey{Namespace: img.Namespace, Name: old.PersistentVolumeClaim}, claim))

	setSourcePath(t, img, "/ok/100ms/c")
	got = env.AwaitSucceeded(t, img)
	require.NotNil(t, got.Status.Serving)
	assert.Equal(t, got.Status.Revision, got.Status.Serving.Revision)
	env.AwaitGone(t, claim)
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(listSnapshots(t, img)) == 1 && len(env.ListDataVolumes(t, img)) == 1 }))
	assert.Equal(t, 3, history().Attempts(img.UID))
}

// TestSourceChangedToAFailingOne wants the old revision to be served still.
func TestSourceChangedToAFailingOne(t *testing.T) {
	testenv.RunInTurn(t, 31)
	history := observeUnderPolicy(t)
	img := env.NewSnapshottedImage(env.CreateHomeNamespace(t), "image", "/ok/100ms/a")
	old := env.ImportImage(t, img).Status.Serving
	setSourcePath(t, img, "/notfound/100ms/b")
	got := env.AwaitFailed(t, img, v1alpha1.ReasonNotFound)
	require.NotNil(t, got.Status.Serving)
	assert.Equal(t, old.VolumeSnapshot, got.Status.Serving.VolumeSnapshot)
	setSourcePath(t, img, "/ok/100ms/c")
	got = env.AwaitSucceeded(t, img)
	assert.NotEqual(t, old.Revision, got.Status.Serving.Revision)
	assert.Equal(t, 3, history().Attempts(img.UID))
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(listSnapshots(t, img)) == 1 && len(env.ListDataVolumes(t, img)) == 1 }))
}

// TestSourceChangedBackDownloadsNothing wants existing revisions to be used again.
func TestSourceChangedBackDownloadsNothing(t *testing.T) {
	testenv.RunInTurn(t, 11)
	t.Run("to a ready revision", func(t *testing.T) {
		history := observeUnderPolicy(t)
		img := env.NewSnapshottedImage(env.CreateHomeNamespace(t), "image", "/ok/100ms/a")
		old := env.ImportImage(t, img).Status.Serving
		setSourcePath(t, img, "/hang/b")
		env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonImporting))
		setSourcePath(t, img, "/ok/100ms/a")
		got := env.AwaitSucceeded(t, img)
		assert.Equal(t, old.VolumeSnapshot, got.Status.Serving.VolumeSnapshot)
		require.True(t, testenv.AwaitCondition(t, func() bool { return len(slotsForUID(t, img.UID)) == 0 && len(env.ListDataVolumes(t, img)) == 1 }))
		assert.LessOrEqual(t, history().Attempts(img.UID), 2)
	})
	t.Run("to a revision that was being imported", func(t *testing.T) {
		history := observeUnderPolicy(t, "concurrency", "1")
		img := createImage(t, "/ok/10s/a")
		env.AwaitImporting(t, img)
		setSourcePath(t, img, "/hang/b")
		setSourcePath(t, img, "/ok/10s/a")
		env.AwaitSucceeded(t, img)
		require.True(t, testenv.AwaitCondition(t, func() bool { return len(slotsForUID(t, img.UID)) == 0 && len(env.ListDataVolumes(t, img)) == 1 }))
		h := history()
		assert.LessOrEqual(t, h.Attempts(img.UID), 3)
		assert.Equal(t, 1, h.MaxRunning())
	})
}

// TestRevisionsAreBounded wants the list of revisions to be bounded, and only the last one to
// be left in the end.
func TestRevisionsAreBounded(t *testing.T) {
	testenv.RunInTurn(t, 35)
	history := observeUnderPolicy(t, "concurrency", "1")
	img := env.ImportImage(t, env.NewSnapshottedImage(env.CreateHomeNamespace(t), "image", "/ok/100ms/0"))
	for i := range 8 {
		setSourcePath(t, img, fmt.Sprintf("/hang/%d", i))
		got := env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
			return img.Status.ObservedGeneration == img.Generation && (i%3 != 0 || img.Status.Reason == v1alpha1.ReasonImporting)
		})
		assert.LessOrEqual(t, len(got.Status.Revisions), v1alpha1.MaxRevisions)
		require.NotNil(t, got.Status.Serving)
	}
	setSourcePath(t, img, "/ok/100ms/last")
	env.AwaitSucceeded(t, img)
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return len(readRevisions(t, img)) == 1 && len(env.ListDataVolumes(t, img)) == 1 && len(listSnapshots(t, img)) == 1
	}))
	h := history()
	assert.Equal(t, 1, h.MaxRunning())
	assert.Equal(t, []types.UID{img.UID}, h.StartOrder())
}
