//go:build linux

package crash

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// runStory runs the story once, in a namespace of its own, whatever becomes of the
// agents, and judges it. In it are an image that is deleted while it imports,
// one with a snapshot that loses its storage and is deleted when it is finished,
// and one that fails, heals, loses its DataVolume as to the collector of an
// older CDI, and is deleted.
func (s *killSweep) runStory(t *testing.T) {
	t.Helper()
	ns := testScene.CreateNamespace(t)
	o := testScene.StartObserver(t)
	defer func() { require.NoError(t, s.replaceDeadAgent(t.Context())) }()
	// Its creation is one of the writes.
	require.NoError(t, client.IgnoreNotFound(testScene.Client().Delete(t.Context(), &v1alpha1.SyncLedger{
		ObjectMeta: metav1.ObjectMeta{Namespace: program.AgentNamespace, Name: v1alpha1.LedgerName},
	})))

	doomed := testScene.NewImage(ns, "doomed", "/hang/doomed.qcow2")
	snap := testScene.NewSnapshottedImage(ns, "snap", "/ok/200ms/snap.qcow2")
	heals := testScene.NewImage(ns, "heals", "/flaky/1/200ms/heals.qcow2")
	testScene.Create(t, doomed, snap, heals)

	s.awaitWithAgent(t, "the import of doomed", func() bool { return s.isFirstImportRunning(t, doomed) })
	require.NoError(t, testScene.Client().Delete(t.Context(), doomed.DeepCopy()))

	s.awaitWithAgent(t, "the first sync of snap", func() bool { return s.isServingAttempt(t, snap, 1) })
	require.NoError(t, testScene.Client().Delete(t.Context(), s.latestDataVolume(t, snap)))

	s.awaitWithAgent(t, "heals to heal", func() bool { return s.isServingAttempt(t, heals, 2) })
	require.NoError(t, testScene.Client().Delete(t.Context(), s.latestDataVolume(t, heals), client.PropagationPolicy(metav1.DeletePropagationOrphan)))
	s.awaitWithAgent(t, "the DataVolume of heals to be gone", func() bool { return s.latestDataVolume(t, heals) == nil })
	require.NoError(t, testScene.Client().Delete(t.Context(), heals.DeepCopy()))

	s.awaitWithAgent(t, "the second sync of snap", func() bool { return s.isServingAttempt(t, snap, 2) })
	require.NoError(t, testScene.Client().Delete(t.Context(), snap.DeepCopy()))

	s.awaitWithAgent(t, "all images to be gone", func() bool {
		var images v1alpha1.VMDiskImageList
		require.NoError(t, testScene.Client().List(t.Context(), &images, client.InNamespace(ns)))
		return len(images.Items) == 0
	})
	s.awaitWithAgent(t, "all slots to be free", func() bool { return len(testScene.Ledger(t).Status.Slots) == 0 })
	requireNothingLeft(t, ns)

	h := requirePromisesKept(t, o)
	assert.Equal(t, 1, h.Attempts(doomed.UID), "DataVolumes of doomed")
	assert.Equal(t, 2, h.Attempts(snap.UID), "DataVolumes of snap: one, and one for the storage that was lost")
	assert.Equal(t, 2, h.Attempts(heals.UID), "DataVolumes of heals: one fails, one heals")
}

// isFirstImportRunning tells whether it is stored that the first import of an image runs.
func (s *killSweep) isFirstImportRunning(t *testing.T, img *v1alpha1.VMDiskImage) bool {
	t.Helper()
	var got v1alpha1.VMDiskImage
	require.NoError(t, testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(img), &got))
	return len(got.Status.Revisions) == 1 && got.Status.Revisions[0].Attempt == 1
}

// isServingAttempt tells whether an image has succeeded by an attempt.
func (s *killSweep) isServingAttempt(t *testing.T, img *v1alpha1.VMDiskImage, attempt int32) bool {
	t.Helper()
	var got v1alpha1.VMDiskImage
	require.NoError(t, testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(img), &got))
	return got.Status.Phase == v1alpha1.PhaseSucceeded && got.Status.Serving != nil && got.Status.Serving.Attempt == attempt
}

// latestDataVolume is the last DataVolume of an image; nil for none.
func (s *killSweep) latestDataVolume(t *testing.T, img *v1alpha1.VMDiskImage) *cdiv1.DataVolume {
	t.Helper()
	var dvs cdiv1.DataVolumeList
	err := testScene.Client().List(t.Context(), &dvs, client.InNamespace(img.Namespace), client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)})
	require.True(t, err == nil || apierrors.IsNotFound(err), "%v", err)
	if len(dvs.Items) == 0 {
		return nil
	}
	return &dvs.Items[len(dvs.Items)-1]
}
