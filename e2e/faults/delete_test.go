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
	"github.com/pelotech/ot-fleet/e2e/scene"
	"github.com/pelotech/ot-fleet/e2e/simulator"
)

// TestDeleted wants that an image goes with everything that was made for it,
// wherever it was and however it is deleted, and that its slot is free then.
func TestDeleted(t *testing.T) {
	foreground := client.PropagationPolicy(metav1.DeletePropagationForeground)
	forced := client.GracePeriodSeconds(0)
	for _, tt := range []struct {
		name   string
		path   string
		change func(*v1alpha1.VMDiskImage)
		until  func(*testing.T, *v1alpha1.VMDiskImage)
		how    []client.DeleteOption
	}{
		{name: "while queued", path: "/ok/a", change: paused, until: because(v1alpha1.ReasonStorageClassMissing)},
		{name: "while importing", path: "/hang/a", until: isImporting},
		{name: "while importing, foreground", path: "/hang/a", until: isImporting, how: []client.DeleteOption{foreground}},
		{name: "while importing, by force", path: "/hang/a", until: isImporting, how: []client.DeleteOption{forced}},
		{name: "while importing into local storage", path: "/hang/a", change: local, until: isImporting},
		{name: "before CDI has made anything", path: "/hang/a", until: func(*testing.T, *v1alpha1.VMDiskImage) {}},
		{name: "while snapshotting", path: "/ok/100ms/a", change: neverReady, until: because(v1alpha1.ReasonSnapshotting)},
		{name: "while snapshotting, foreground", path: "/ok/100ms/a", change: neverReady, until: because(v1alpha1.ReasonSnapshotting), how: []client.DeleteOption{foreground}},
		{name: "failed", path: "/notfound/100ms/a", until: inPhase(v1alpha1.PhaseFailed)},
		{name: "backing off", path: "/servererror/100ms/a", until: because(v1alpha1.ReasonBackingOff)},
		{name: "succeeded", path: "/ok/100ms/a", until: inPhase(v1alpha1.PhaseSucceeded)},
		{name: "succeeded, foreground", path: "/ok/100ms/a", until: inPhase(v1alpha1.PhaseSucceeded), how: []client.DeleteOption{foreground}},
		{name: "succeeded, by force", path: "/ok/100ms/a", until: inPhase(v1alpha1.PhaseSucceeded), how: []client.DeleteOption{forced}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			place.SetPolicy(t, policy("concurrency", "1", "retryBackoffDuration", "1h"))
			history := observed(t)
			ns := home(t)
			img := place.Snapshotted(ns, "image", tt.path)
			if tt.change != nil {
				tt.change(img)
			}
			place.Create(t, img)
			tt.until(t, img)
			require.NoError(t, place.Client().Delete(t.Context(), img, tt.how...))
			place.Gone(t, img.DeepCopy())
			wantNothingStored(t, ns)
			require.True(t, scene.Await(t, func() bool { return len(slotsOf(t, img.UID)) == 0 }))

			next := place.Image(ns, "next", "/ok/0s/a")
			place.Create(t, next)
			succeeded(t, next)
			assert.LessOrEqual(t, history().Attempts(img.UID), 1)
		})
	}
}

func paused(img *v1alpha1.VMDiskImage) { img.Spec.StorageClass = "none-of-this-name" }
func local(img *v1alpha1.VMDiskImage) {
	img.Spec.StorageClass = simulator.ClassLocal
	img.Spec.SnapshotClass = ""
}
func neverReady(img *v1alpha1.VMDiskImage) { img.Spec.SnapshotClass = simulator.SnapshotClassNever }

func isImporting(t *testing.T, img *v1alpha1.VMDiskImage) { importing(t, img) }

func because(r v1alpha1.Reason) func(*testing.T, *v1alpha1.VMDiskImage) {
	return func(t *testing.T, img *v1alpha1.VMDiskImage) { place.Eventually(t, img, scene.Because(r)) }
}

func inPhase(p v1alpha1.Phase) func(*testing.T, *v1alpha1.VMDiskImage) {
	return func(t *testing.T, img *v1alpha1.VMDiskImage) { place.Eventually(t, img, scene.InPhase(p)) }
}

// TestForegroundDeletionTakesNoChildren has the garbage collector do all that a
// foreground deletion asks of it while no agent runs: with owner references,
// the storage would be gone by then.
func TestForegroundDeletionTakesNoChildren(t *testing.T) {
	place.SetPolicy(t, policy())
	ns := home(t)
	img := place.Snapshotted(ns, "image", "/ok/100ms/a")
	place.Create(t, img)
	succeeded(t, img)
	// CDI removes what it imported with and into a little later, and their volumes go after that.
	var before []string
	require.True(t, scene.Await(t, func() bool {
		before = stored(t, ns)
		kinds := map[string]int{}
		for _, name := range before {
			kind, _, _ := strings.Cut(name, "/")
			kinds[kind]++
		}
		return kinds["PersistentVolumeClaim"] == 1 && kinds["PersistentVolume"] == 1 && kinds["Pod"] == 0
	}), "CDI leaves more than the image: %v", &before)
	place.WithoutAgent(t, func() {
		require.NoError(t, place.Client().Delete(t.Context(), img, client.PropagationPolicy(metav1.DeletePropagationForeground)))
		place.Eventually(t, img, func(img *v1alpha1.VMDiskImage) bool {
			return assert.ObjectsAreEqual([]string{v1alpha1.FinalizerImage}, img.Finalizers)
		})
		assert.ElementsMatch(t, before, stored(t, ns))
	})
	place.Gone(t, img.DeepCopy())
	wantNothingStored(t, ns)
}

// rip takes an image away from under the agent.
func rip(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	require.NoError(t, client.IgnoreNotFound(place.Client().Delete(t.Context(), img)))
	require.NoError(t, client.IgnoreNotFound(place.Client().Patch(t.Context(), img, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
	place.Gone(t, img.DeepCopy())
}

func TestFinalizerRippedOff(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, img *v1alpha1.VMDiskImage)
	}{
		{"while the agent runs", rip},
		{"while no agent runs", func(t *testing.T, img *v1alpha1.VMDiskImage) {
			place.WithoutAgent(t, func() { rip(t, img) })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			place.SetPolicy(t, policy("concurrency", "1"))
			history := observed(t)
			ns := home(t)
			img := place.Image(ns, "image", "/hang/a")
			place.Create(t, img)
			importing(t, img)
			next := place.Image(home(t), "next", "/ok/0s/a")
			place.Create(t, next)
			tt.do(t, img)
			wantNothingStored(t, ns)
			succeeded(t, next)
			require.True(t, scene.Await(t, func() bool { return len(place.Ledger(t).Status.Slots) == 0 }))
			assert.Equal(t, 1, history().Attempts(img.UID))
		})
	}
}

// TestDeletedAndCreatedAgain wants that an image never takes over what another
// of its name has left.
func TestDeletedAndCreatedAgain(t *testing.T) {
	for _, tt := range []struct {
		name string
		path string
		until,
		remove func(*testing.T, *v1alpha1.VMDiskImage)
	}{
		{"while importing", "/hang/a", isImporting, func(t *testing.T, img *v1alpha1.VMDiskImage) {
			require.NoError(t, place.Client().Delete(t.Context(), img))
		}},
		{"when succeeded", "/ok/100ms/a", inPhase(v1alpha1.PhaseSucceeded), func(t *testing.T, img *v1alpha1.VMDiskImage) {
			require.NoError(t, place.Client().Delete(t.Context(), img))
		}},
		{"with its finalizer ripped off", "/hang/a", isImporting, rip},
		{"with its finalizer ripped off and no agent there", "/hang/a", isImporting, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			place.SetPolicy(t, policy("concurrency", "1"))
			history := observed(t)
			ns := home(t)
			old := place.Snapshotted(ns, "image", tt.path)
			place.Create(t, old)
			tt.until(t, old)
			again := place.Snapshotted(ns, "image", "/ok/200ms/b")
			create := func() {
				require.True(t, scene.Await(t, func() bool { return place.Client().Create(t.Context(), again) == nil }))
			}
			if tt.remove == nil {
				place.WithoutAgent(t, func() { rip(t, old); create() })
			} else {
				tt.remove(t, old)
				create()
			}
			got := succeeded(t, again)
			require.NotEqual(t, old.UID, again.UID)
			h := history()
			assert.Equal(t, 1, h.Attempts(old.UID))
			assert.Equal(t, 1, h.Attempts(again.UID))
			require.True(t, scene.Await(t, func() bool { return len(dataVolumesOf(t, old)) == 0 }))
			for _, s := range h.Starts() {
				if s.Image == again.UID {
					assert.Equal(t, ns+"/"+got.Status.Serving.PersistentVolumeClaim, s.DataVolume)
				}
			}
		})
	}
}

func TestOneNameInTwoNamespaces(t *testing.T) {
	place.SetPolicy(t, policy())
	history := observed(t)
	here, there := place.Snapshotted(home(t), "image", "/ok/200ms/a"), place.Snapshotted(home(t), "image", "/ok/200ms/b")
	place.Create(t, here, there)
	one, other := succeeded(t, here), succeeded(t, there)
	assert.NotEqual(t, one.Status.Serving.PersistentVolumeClaim, other.Status.Serving.PersistentVolumeClaim)

	require.NoError(t, place.Client().Delete(t.Context(), here))
	place.Gone(t, here.DeepCopy())
	wantNothingStored(t, here.Namespace)
	succeeded(t, there)
	assert.Len(t, dataVolumesOf(t, there), 1)
	assert.Len(t, snapshotsOf(t, there), 1)
	h := history()
	assert.Equal(t, 1, h.Attempts(here.UID))
	assert.Equal(t, 1, h.Attempts(there.UID))
}
