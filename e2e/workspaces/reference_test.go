//go:build linux

package workspaces

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// withoutCDI does something while clones do not get on.
func withoutCDI(t *testing.T, do func()) {
	t.Helper()
	require.NoError(t, place.StopCDI())
	t.Cleanup(func() { require.NoError(t, place.StartCDI()) }) // also where do gives up
	do()
	require.NoError(t, place.StartCDI())
}

func clonedFrom(dv *cdiv1.DataVolume) string { return dv.Annotations[v1alpha1.AnnotationClonedFrom] }

// TestOtherImageBeforeTheDiskIsThere: what has been pinned is let go, and nothing
// is left of the clone that was begun.
func TestOtherImageBeforeTheDiskIsThere(t *testing.T) {
	ns := place.Namespace(t)
	one, other := place.Snapshotted(ns, "one", "/ok/100ms/1"), place.Snapshotted(ns, "other", "/ok/100ms/2")
	place.Create(t, one, other)
	one, other = succeeded(t, one), succeeded(t, other)
	vm := scene.Machine(ns, "vm", one)
	begun := &cdiv1.DataVolume{}
	withoutCDI(t, func() {
		place.Create(t, vm)
		cloning := because(t, vm, v1alpha1.ReasonCloning)
		require.Equal(t, one.UID, cloning.Status.Pinned.UID)
		held(t, one, vm)
		*begun = *eventually(t, rootDisk(vm), "made", func(*cdiv1.DataVolume) bool { return true })

		place.Change(t, vm, func() { vm.Spec.VMDiskImageRef.Name = other.Name })
		place.EventuallyMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
			return vm.Status.Pinned != nil && vm.Status.Pinned.UID == other.UID && vm.Status.Pinned.AcquiredAt != nil
		})
		held(t, one)
		held(t, other, vm)
	})
	got := runs(t, vm)
	adjusted, _ := scene.Holds(got, v1alpha1.ConditionSpecAdjusted)
	assert.False(t, adjusted)
	disk := read(t, rootDisk(vm))
	assert.NotEqual(t, begun.UID, disk.UID)
	assert.Equal(t, other.Status.Serving.VolumeSnapshot, disk.Spec.Source.Snapshot.Name)
	var disks cdiv1.DataVolumeList
	require.NoError(t, place.Client().List(t.Context(), &disks, client.InNamespace(ns), client.HasLabels{v1alpha1.LabelMachineUID}))
	assert.Len(t, disks.Items, 1)
	var claims corev1.PersistentVolumeClaimList
	require.True(t, scene.Await(t, func() bool {
		require.NoError(t, place.Client().List(t.Context(), &claims, client.InNamespace(ns)))
		return len(claims.Items) == 3
	}), "two images and a disk have these claims: %v", leftIn(t, ns))
}

// TestOtherImageOnceTheDiskIsThere is for a new disk only, which is made when
// the old one is deleted; both images are held until then.
func TestOtherImageOnceTheDiskIsThere(t *testing.T) {
	t.Parallel()
	ns := place.Namespace(t)
	one, other := place.Snapshotted(ns, "one", "/ok/100ms/1"), place.Snapshotted(ns, "other", "/ok/100ms/2")
	place.Create(t, one, other)
	one, other = succeeded(t, one), succeeded(t, other)
	vm := scene.Machine(ns, "vm", one)
	started(t, vm)
	disk := read(t, rootDisk(vm))

	place.Change(t, vm, func() { vm.Spec.VMDiskImageRef.Name = other.Name })
	adjusted := says(t, vm, v1alpha1.ConditionSpecAdjusted, metav1.ConditionTrue)
	assert.Contains(t, adjusted, "the root disk was cloned from VMDiskImage "+ns+"/one and stays")
	got := runs(t, vm)
	assert.Equal(t, one.UID, got.Status.Pinned.UID)
	held(t, one, vm)
	held(t, other, vm)
	assert.Equal(t, disk.UID, read(t, rootDisk(vm)).UID)

	stopped(t, vm)
	removed(t, disk)
	next := eventually(t, rootDisk(vm), "cloned again", func(dv *cdiv1.DataVolume) bool { return dv.Status.Phase == cdiv1.Succeeded })
	assert.Equal(t, other.Status.Serving.VolumeSnapshot, next.Spec.Source.Snapshot.Name)
	says(t, vm, v1alpha1.ConditionSpecAdjusted, metav1.ConditionFalse)
	held(t, one)
	held(t, other, vm)
	run(t, vm, kubevirtv1.RunStrategyAlways)
	runs(t, vm)
}

// TestRootDiskDeleted is cloned again, from what the machine has pinned, though
// the image has moved on.
func TestRootDiskDeleted(t *testing.T) {
	t.Parallel()
	ns := place.Namespace(t)
	img := imported(t, place.Snapshotted(ns, "image", "/ok/100ms/1"))
	vm := scene.Machine(ns, "vm", img)
	was := started(t, vm)
	disk := read(t, rootDisk(vm))

	place.Change(t, img, func() { img.Spec.URL += "-newer" })
	place.Eventually(t, img, func(got *v1alpha1.VMDiskImage) bool {
		return got.Status.Phase == v1alpha1.PhaseSucceeded && got.Status.Serving.Revision != was.Status.Pinned.Revision
	})
	stopped(t, vm)
	removed(t, read(t, rootDisk(vm)))
	again := eventually(t, rootDisk(vm), "cloned again", func(dv *cdiv1.DataVolume) bool { return dv.Status.Phase == cdiv1.Succeeded })
	assert.Equal(t, clonedFrom(disk), clonedFrom(again))
	run(t, vm, kubevirtv1.RunStrategyAlways)
	got := runs(t, vm)
	assert.Equal(t, was.Status.Pinned, got.Status.Pinned)
	newer := scene.Machine(ns, "newer", img)
	assert.NotEqual(t, was.Status.Pinned.Revision, started(t, newer).Status.Pinned.Revision)
	kept := held(t, img, newer, vm)
	assert.Contains(t, kept.Status.Message, "what came before is kept for those built from it: "+ns+"/vm")

	remove(t, vm)
	place.Eventually(t, img, func(img *v1alpha1.VMDiskImage) bool { return len(img.Status.Revisions) == 1 })
	var imports cdiv1.DataVolumeList
	require.True(t, scene.Await(t, func() bool {
		require.NoError(t, place.Client().List(t.Context(), &imports, client.InNamespace(ns), client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)}))
		return len(imports.Items) == 1
	}), "the old revision is still there: %v", leftIn(t, ns))
}

// TestSnapshotDeleted while nothing is cloned, and while something is: the image
// makes another, and a clone is taken from that.
func TestSnapshotDeleted(t *testing.T) {
	ns := place.Namespace(t)
	img := imported(t, place.Snapshotted(ns, "image", "/ok/100ms/1"))
	vm := scene.Machine(ns, "vm", img)
	was := started(t, vm)
	made := map[string]bool{was.Status.Pinned.VolumeSnapshot: true}
	another := func() {
		img = place.Eventually(t, img, func(img *v1alpha1.VMDiskImage) bool {
			return img.Status.Serving != nil && img.Status.Phase == v1alpha1.PhaseSucceeded && !made[img.Status.Serving.VolumeSnapshot]
		})
		made[img.Status.Serving.VolumeSnapshot] = true
	}
	remove(t, snapshot(ns, was.Status.Pinned.VolumeSnapshot))
	another()
	assert.Equal(t, was.Status.Pinned, runs(t, vm).Status.Pinned, "the disk is of that snapshot all the same")

	next := scene.Machine(ns, "next", img)
	withoutCDI(t, func() {
		place.Create(t, next)
		because(t, next, v1alpha1.ReasonCloning)
		remove(t, snapshot(ns, img.Status.Serving.VolumeSnapshot))
		another()
	})
	got := runs(t, next)
	assert.Equal(t, img.Status.Serving.VolumeSnapshot, got.Status.Pinned.VolumeSnapshot)
	assert.EqualValues(t, 1, img.Status.LastAttempt, "nothing is downloaded for a snapshot")
	runs(t, vm)
}
