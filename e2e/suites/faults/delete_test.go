//go:build linux

package faults

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestDeletedImageLeavesNothing wants that an image goes with everything that was made for it,
// wherever it was and however it is deleted, and that its slot is free then.
func TestDeletedImageLeavesNothing(t *testing.T) {
	foreground := client.PropagationPolicy(metav1.DeletePropagationForeground)
	forced := client.GracePeriodSeconds(0)
	for _, tt := range []struct {
		name   string
		path   string
		change func(*v1alpha1.VMDiskImage)
		until  func(*testing.T, *v1alpha1.VMDiskImage)
		how    []client.DeleteOption
	}{
		{name: "while queued", path: "/ok/a", change: setPaused, until: awaitReasonStep(v1alpha1.ReasonStorageClassMissing)},
		{name: "while importing", path: "/hang/a", until: awaitImportingStep},
		{name: "while importing, foreground", path: "/hang/a", until: awaitImportingStep, how: []client.DeleteOption{foreground}},
		{name: "while importing, by force", path: "/hang/a", until: awaitImportingStep, how: []client.DeleteOption{forced}},
		{name: "while importing into local storage", path: "/hang/a", change: useLocalClass, until: awaitImportingStep},
		{name: "before CDI has made anything", path: "/hang/a", until: func(*testing.T, *v1alpha1.VMDiskImage) {}},
		{name: "while snapshotting", path: "/ok/100ms/a", change: useNeverReadySnapshots, until: awaitReasonStep(v1alpha1.ReasonSnapshotting)},
		{name: "while snapshotting, foreground", path: "/ok/100ms/a", change: useNeverReadySnapshots, until: awaitReasonStep(v1alpha1.ReasonSnapshotting), how: []client.DeleteOption{foreground}},
		{name: "failed", path: "/notfound/100ms/a", until: awaitPhaseStep(v1alpha1.PhaseFailed)},
		{name: "backing off", path: "/servererror/100ms/a", until: awaitReasonStep(v1alpha1.ReasonBackingOff)},
		{name: "succeeded", path: "/ok/100ms/a", until: awaitPhaseStep(v1alpha1.PhaseSucceeded)},
		{name: "succeeded, foreground", path: "/ok/100ms/a", until: awaitPhaseStep(v1alpha1.PhaseSucceeded), how: []client.DeleteOption{foreground}},
		{name: "succeeded, by force", path: "/ok/100ms/a", until: awaitPhaseStep(v1alpha1.PhaseSucceeded), how: []client.DeleteOption{forced}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testScene.SetPolicy(t, newPolicy("concurrency", "1", "retryBackoffDuration", "1h"))
			history := observeTest(t)
			ns := createHomeNamespace(t)
			img := testScene.NewSnapshottedImage(ns, "image", tt.path)
			if tt.change != nil {
				tt.change(img)
			}
			testScene.Create(t, img)
			tt.until(t, img)
			require.NoError(t, testScene.Client().Delete(t.Context(), img, tt.how...))
			testScene.AwaitGone(t, img.DeepCopy())
			awaitNothingStored(t, ns)
			require.True(t, testenv.Await(t, func() bool { return len(slotsForUID(t, img.UID)) == 0 }))

			next := testScene.NewImage(ns, "next", "/ok/0s/a")
			testScene.Create(t, next)
			awaitSucceeded(t, next)
			assert.LessOrEqual(t, history().Attempts(img.UID), 1)
		})
	}
}

func setPaused(img *v1alpha1.VMDiskImage) { img.Spec.StorageClass = "none-of-this-name" }
func useLocalClass(img *v1alpha1.VMDiskImage) {
	img.Spec.StorageClass = simulator.ClassLocal
	img.Spec.SnapshotClass = ""
}
func useNeverReadySnapshots(img *v1alpha1.VMDiskImage) {
	img.Spec.SnapshotClass = simulator.SnapshotClassNever
}

func awaitImportingStep(t *testing.T, img *v1alpha1.VMDiskImage) { awaitImporting(t, img) }

func awaitReasonStep(r v1alpha1.Reason) func(*testing.T, *v1alpha1.VMDiskImage) {
	return func(t *testing.T, img *v1alpha1.VMDiskImage) { testScene.AwaitImage(t, img, testenv.HasReason(r)) }
}

func awaitPhaseStep(p v1alpha1.Phase) func(*testing.T, *v1alpha1.VMDiskImage) {
	return func(t *testing.T, img *v1alpha1.VMDiskImage) { testScene.AwaitImage(t, img, testenv.InPhase(p)) }
}

// TestForegroundDeletionTakesNoChildren has the garbage collector do all that a
// foreground deletion asks of it while no agent runs: with owner references,
// the storage would be gone by then.
func TestForegroundDeletionTakesNoChildren(t *testing.T) {
	testScene.SetPolicy(t, newPolicy())
	ns := createHomeNamespace(t)
	img := testScene.NewSnapshottedImage(ns, "image", "/ok/100ms/a")
	testScene.Create(t, img)
	awaitSucceeded(t, img)
	// CDI removes what it imported with and into a little later, and their volumes go after that.
	var before []string
	require.True(t, testenv.Await(t, func() bool {
		before = listStored(t, ns)
		kinds := map[string]int{}
		for _, name := range before {
			kind, _, _ := strings.Cut(name, "/")
			kinds[kind]++
		}
		return kinds["PersistentVolumeClaim"] == 1 && kinds["PersistentVolume"] == 1 && kinds["Pod"] == 0
	}), "CDI leaves more than the image: %v", &before)
	testScene.WithoutAgent(t, func() {
		require.NoError(t, testScene.Client().Delete(t.Context(), img, client.PropagationPolicy(metav1.DeletePropagationForeground)))
		testScene.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
			return assert.ObjectsAreEqual([]string{v1alpha1.FinalizerImage}, img.Finalizers)
		})
		assert.ElementsMatch(t, before, listStored(t, ns))
	})
	testScene.AwaitGone(t, img.DeepCopy())
	awaitNothingStored(t, ns)
}

// removeFinalizers takes an image away from under the agent.
func removeFinalizers(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	require.NoError(t, client.IgnoreNotFound(testScene.Client().Delete(t.Context(), img)))
	require.NoError(t, client.IgnoreNotFound(testScene.Client().Patch(t.Context(), img, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
	testScene.AwaitGone(t, img.DeepCopy())
}

func TestImageDeletedWithoutFinalizer(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, img *v1alpha1.VMDiskImage)
	}{
		{"while the agent runs", removeFinalizers},
		{"while no agent runs", func(t *testing.T, img *v1alpha1.VMDiskImage) {
			testScene.WithoutAgent(t, func() { removeFinalizers(t, img) })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testScene.SetPolicy(t, newPolicy("concurrency", "1"))
			history := observeTest(t)
			ns := createHomeNamespace(t)
			img := testScene.NewImage(ns, "image", "/hang/a")
			testScene.Create(t, img)
			awaitImporting(t, img)
			next := testScene.NewImage(createHomeNamespace(t), "next", "/ok/0s/a")
			testScene.Create(t, next)
			tt.do(t, img)
			awaitNothingStored(t, ns)
			awaitSucceeded(t, next)
			require.True(t, testenv.Await(t, func() bool { return len(testScene.Ledger(t).Status.Slots) == 0 }))
			assert.Equal(t, 1, history().Attempts(img.UID))
		})
	}
}

// TestRecreatedImageTakesNothingOver wants that an image never takes over what another
// of its name has left.
func TestRecreatedImageTakesNothingOver(t *testing.T) {
	for _, tt := range []struct {
		name string
		path string
		until,
		remove func(*testing.T, *v1alpha1.VMDiskImage)
	}{
		{"while importing", "/hang/a", awaitImportingStep, func(t *testing.T, img *v1alpha1.VMDiskImage) {
			require.NoError(t, testScene.Client().Delete(t.Context(), img))
		}},
		{"when succeeded", "/ok/100ms/a", awaitPhaseStep(v1alpha1.PhaseSucceeded), func(t *testing.T, img *v1alpha1.VMDiskImage) {
			require.NoError(t, testScene.Client().Delete(t.Context(), img))
		}},
		{"with its finalizer ripped off", "/hang/a", awaitImportingStep, removeFinalizers},
		{"with its finalizer ripped off and no agent there", "/hang/a", awaitImportingStep, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testScene.SetPolicy(t, newPolicy("concurrency", "1"))
			history := observeTest(t)
			ns := createHomeNamespace(t)
			old := testScene.NewSnapshottedImage(ns, "image", tt.path)
			testScene.Create(t, old)
			tt.until(t, old)
			again := testScene.NewSnapshottedImage(ns, "image", "/ok/200ms/b")
			create := func() {
				require.True(t, testenv.Await(t, func() bool { return testScene.Client().Create(t.Context(), again) == nil }))
			}
			if tt.remove == nil {
				testScene.WithoutAgent(t, func() { removeFinalizers(t, old); create() })
			} else {
				tt.remove(t, old)
				create()
			}
			got := awaitSucceeded(t, again)
			require.NotEqual(t, old.UID, again.UID)
			h := history()
			assert.Equal(t, 1, h.Attempts(old.UID))
			assert.Equal(t, 1, h.Attempts(again.UID))
			require.True(t, testenv.Await(t, func() bool { return len(listDataVolumes(t, old)) == 0 }))
			for _, s := range h.Creations() {
				if s.Image == again.UID {
					assert.Equal(t, ns+"/"+got.Status.Serving.PersistentVolumeClaim, s.DataVolume)
				}
			}
		})
	}
}

func TestSameNameInTwoNamespaces(t *testing.T) {
	testScene.SetPolicy(t, newPolicy())
	history := observeTest(t)
	first, second := testScene.NewSnapshottedImage(createHomeNamespace(t), "image", "/ok/200ms/a"), testScene.NewSnapshottedImage(createHomeNamespace(t), "image", "/ok/200ms/b")
	testScene.Create(t, first, second)
	firstReady, secondReady := awaitSucceeded(t, first), awaitSucceeded(t, second)
	assert.NotEqual(t, firstReady.Status.Serving.PersistentVolumeClaim, secondReady.Status.Serving.PersistentVolumeClaim)

	require.NoError(t, testScene.Client().Delete(t.Context(), first))
	testScene.AwaitGone(t, first.DeepCopy())
	awaitNothingStored(t, first.Namespace)
	awaitSucceeded(t, second)
	assert.Len(t, listDataVolumes(t, second), 1)
	assert.Len(t, listSnapshots(t, second), 1)
	h := history()
	assert.Equal(t, 1, h.Attempts(first.UID))
	assert.Equal(t, 1, h.Attempts(second.UID))
}
