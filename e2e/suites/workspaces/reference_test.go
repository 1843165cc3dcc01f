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
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// withCDIStopped does something while clones do not get on.
func withCDIStopped(t *testing.T, do func()) {
	t.Helper()
	require.NoError(t, env.StopCDI())
	t.Cleanup(func() { require.NoError(t, env.StartCDI()) }) // also where do gives up
	do()
	require.NoError(t, env.StartCDI())
}

func cloneSourceOf(dv *cdiv1.DataVolume) string { return dv.Annotations[v1alpha1.AnnotationClonedFrom] }

// TestImageChangedBeforeRootDiskExists: what has been pinned is let go, and nothing
// is left of the clone that was begun.
func TestImageChangedBeforeRootDiskExists(t *testing.T) {
	ns := env.CreateNamespace(t)
	one, other := env.NewSnapshottedImage(ns, "one", "/ok/100ms/1"), env.NewSnapshottedImage(ns, "other", "/ok/100ms/2")
	env.Create(t, one, other)
	one, other = awaitSucceeded(t, one), awaitSucceeded(t, other)
	vm := testenv.NewMachine(ns, "vm", one)
	begun := &cdiv1.DataVolume{}
	withCDIStopped(t, func() {
		env.Create(t, vm)
		cloning := awaitReason(t, vm, v1alpha1.ReasonCloningRootDisk)
		require.Equal(t, one.UID, cloning.Status.Pinned.UID)
		awaitHolders(t, one, vm)
		*begun = *awaitObject(t, rootDiskOf(vm), "made", func(*cdiv1.DataVolume) bool { return true })

		env.Update(t, vm, func() { vm.Spec.VMDiskImageRef.Name = other.Name })
		env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
			return vm.Status.Pinned != nil && vm.Status.Pinned.UID == other.UID && vm.Status.Pinned.AcquiredAt != nil
		})
		awaitHolders(t, one)
		awaitHolders(t, other, vm)
	})
	got := awaitRunning(t, vm)
	adjusted, _ := testenv.IsConditionTrue(got, v1alpha1.ConditionSpecAdjusted)
	assert.False(t, adjusted)
	disk := requireObject(t, rootDiskOf(vm))
	assert.NotEqual(t, begun.UID, disk.UID)
	assert.Equal(t, other.Status.Serving.VolumeSnapshot, disk.Spec.Source.Snapshot.Name)
	var disks cdiv1.DataVolumeList
	require.NoError(t, env.Client().List(t.Context(), &disks, client.InNamespace(ns), client.HasLabels{v1alpha1.LabelMachineUID}))
	assert.Len(t, disks.Items, 1)
	var claims corev1.PersistentVolumeClaimList
	require.True(t, testenv.Await(t, func() bool {
		require.NoError(t, env.Client().List(t.Context(), &claims, client.InNamespace(ns)))
		return len(claims.Items) == 3
	}), "two images and a disk have these claims: %v", listLeftovers(t, ns))
}

// TestImageChangedAfterRootDiskExists is for a new disk only, which is made when
// the old one is deleted; both images are held until then.
func TestImageChangedAfterRootDiskExists(t *testing.T) {
	t.Parallel()
	ns := env.CreateNamespace(t)
	one, other := env.NewSnapshottedImage(ns, "one", "/ok/100ms/1"), env.NewSnapshottedImage(ns, "other", "/ok/100ms/2")
	env.Create(t, one, other)
	one, other = awaitSucceeded(t, one), awaitSucceeded(t, other)
	vm := testenv.NewMachine(ns, "vm", one)
	createAndAwaitRunning(t, vm)
	disk := requireObject(t, rootDiskOf(vm))

	env.Update(t, vm, func() { vm.Spec.VMDiskImageRef.Name = other.Name })
	adjusted := awaitCondition(t, vm, v1alpha1.ConditionSpecAdjusted, metav1.ConditionTrue)
	assert.Contains(t, adjusted, "the root disk was cloned from VMDiskImage "+ns+"/one and stays")
	got := awaitRunning(t, vm)
	assert.Equal(t, one.UID, got.Status.Pinned.UID)
	awaitHolders(t, one, vm)
	awaitHolders(t, other, vm)
	assert.Equal(t, disk.UID, requireObject(t, rootDiskOf(vm)).UID)

	stopVM(t, vm)
	deleteAndAwaitGone(t, disk)
	next := awaitObject(t, rootDiskOf(vm), "cloned again", func(dv *cdiv1.DataVolume) bool { return dv.Status.Phase == cdiv1.Succeeded })
	assert.Equal(t, other.Status.Serving.VolumeSnapshot, next.Spec.Source.Snapshot.Name)
	awaitCondition(t, vm, v1alpha1.ConditionSpecAdjusted, metav1.ConditionFalse)
	awaitHolders(t, one)
	awaitHolders(t, other, vm)
	runVM(t, vm, kubevirtv1.RunStrategyAlways)
	awaitRunning(t, vm)
}

// TestDeletedRootDiskIsCloned is cloned again, from what the machine has pinned, though
// the image has moved on.
func TestDeletedRootDiskIsCloned(t *testing.T) {
	t.Parallel()
	ns := env.CreateNamespace(t)
	img := createAndAwaitImage(t, env.NewSnapshottedImage(ns, "image", "/ok/100ms/1"))
	vm := testenv.NewMachine(ns, "vm", img)
	was := createAndAwaitRunning(t, vm)
	disk := requireObject(t, rootDiskOf(vm))

	env.Update(t, img, func() { img.Spec.URL += "-newer" })
	env.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool {
		return got.Status.Phase == v1alpha1.PhaseSucceeded && got.Status.Serving.Revision != was.Status.Pinned.Revision
	})
	stopVM(t, vm)
	deleteAndAwaitGone(t, requireObject(t, rootDiskOf(vm)))
	again := awaitObject(t, rootDiskOf(vm), "cloned again", func(dv *cdiv1.DataVolume) bool { return dv.Status.Phase == cdiv1.Succeeded })
	assert.Equal(t, cloneSourceOf(disk), cloneSourceOf(again))
	runVM(t, vm, kubevirtv1.RunStrategyAlways)
	got := awaitRunning(t, vm)
	assert.Equal(t, was.Status.Pinned, got.Status.Pinned)
	newer := testenv.NewMachine(ns, "newer", img)
	assert.NotEqual(t, was.Status.Pinned.Revision, createAndAwaitRunning(t, newer).Status.Pinned.Revision)
	kept := awaitHolders(t, img, newer, vm)
	assert.Contains(t, kept.Status.Message, "what came before is kept for those built from it: "+ns+"/vm")

	deleteObject(t, vm)
	env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool { return len(img.Status.Revisions) == 1 })
	var imports cdiv1.DataVolumeList
	require.True(t, testenv.Await(t, func() bool {
		require.NoError(t, env.Client().List(t.Context(), &imports, client.InNamespace(ns), client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)}))
		return len(imports.Items) == 1
	}), "the old revision is still there: %v", listLeftovers(t, ns))
}

// TestDeletedSnapshotDuringClone while nothing is cloned, and while something is: the image
// makes another, and a clone is taken from that.
func TestDeletedSnapshotDuringClone(t *testing.T) {
	ns := env.CreateNamespace(t)
	img := createAndAwaitImage(t, env.NewSnapshottedImage(ns, "image", "/ok/100ms/1"))
	vm := testenv.NewMachine(ns, "vm", img)
	was := createAndAwaitRunning(t, vm)
	made := map[string]bool{was.Status.Pinned.VolumeSnapshot: true}
	another := func() {
		img = env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
			return img.Status.Serving != nil && img.Status.Phase == v1alpha1.PhaseSucceeded && !made[img.Status.Serving.VolumeSnapshot]
		})
		made[img.Status.Serving.VolumeSnapshot] = true
	}
	deleteObject(t, snapshotOf(ns, was.Status.Pinned.VolumeSnapshot))
	another()
	assert.Equal(t, was.Status.Pinned, awaitRunning(t, vm).Status.Pinned, "the disk is of that snapshot all the same")

	next := testenv.NewMachine(ns, "next", img)
	withCDIStopped(t, func() {
		env.Create(t, next)
		awaitReason(t, next, v1alpha1.ReasonCloningRootDisk)
		deleteObject(t, snapshotOf(ns, img.Status.Serving.VolumeSnapshot))
		another()
	})
	got := awaitRunning(t, next)
	assert.Equal(t, img.Status.Serving.VolumeSnapshot, got.Status.Pinned.VolumeSnapshot)
	assert.EqualValues(t, 1, img.Status.LastAttempt, "nothing is downloaded for a snapshot")
	awaitRunning(t, vm)
}
