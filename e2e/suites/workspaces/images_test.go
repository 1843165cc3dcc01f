//go:build linux

package workspaces

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestVMWaitsForItsImage wants the VM to show why its image is not ready.
func TestVMWaitsForItsImage(t *testing.T) {
	setPolicyForTest(t, "concurrency", "0")
	ns, farm := env.CreateNamespace(t), env.CreateNamespace(t)
	first := env.NewImage(farm, "first", "/hang/a")
	env.Create(t, first)
	img := env.NewSnapshottedImage(farm, "image", "/ok/100ms/b")
	vm := withImageTemplate(ns, "vm", img)
	env.Create(t, vm)

	paused := env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Image != nil && vm.Status.Image.Reason == v1alpha1.ReasonPaused
	})
	assert.Equal(t, v1alpha1.MachineProvisioning, paused.Status.Phase)
	assert.Equal(t, v1alpha1.ReasonWaitingForImage, paused.Status.Reason)
	assert.Contains(t, paused.Status.Message, "waiting for VMDiskImage "+farm+"/image: Queued, Paused: nothing is downloaded: the policy's concurrency is 0")
	made := awaitHolders(t, img, vm)
	assert.Equal(t, ns+"/vm", made.Annotations[v1alpha1.AnnotationCreatedFor])
	assert.Equal(t, img.Spec, made.Spec)

	env.SetPolicy(t, newPolicy("concurrency", "1"))
	queued := env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Image != nil && vm.Status.Image.QueuePosition != nil && *vm.Status.Image.QueuePosition == 0
	})
	assert.Contains(t, queued.Status.Message, "Queued, WaitingForSlot: waits for a slot; it is next")
	deleteObject(t, first)
	got := awaitRunning(t, vm)
	assert.Equal(t, made.UID, got.Status.Pinned.UID)
}

func TestVMWithoutRightToCreateItsImage(t *testing.T) {
	testenv.RunInTurn(t, 8)
	t.Parallel()
	ns := env.CreateNamespace(t)
	img := env.NewSnapshottedImage(ns, "image", "/ok/100ms/a")
	vm, bare := withImageTemplate(ns, "vm", img), testenv.NewMachine(ns, "bare", img)
	vm.Spec.ImageMode = v1alpha1.ImageModeFail
	env.Create(t, vm, bare)
	for _, vm := range []*v1alpha1.VirtualMachine{vm, bare} {
		got := awaitReason(t, vm, v1alpha1.ReasonImageMissing)
		assert.Contains(t, got.Status.Message, "VMDiskImage "+ns+"/image does not exist")
	}
	awaitFailure(t, bare, v1alpha1.ReasonImageMissing)
	assert.True(t, apierrors.IsNotFound(env.Client().Get(t.Context(), client.ObjectKeyFromObject(img), &v1alpha1.VMDiskImage{})))

	env.Create(t, img)
	awaitRunning(t, vm)
	awaitRunning(t, bare)
}

func TestExistingImageWinsOverTemplate(t *testing.T) {
	testenv.RunInTurn(t, 20)
	t.Parallel()
	img := sharedImage(t)
	vm := withImageTemplate(env.CreateNamespace(t), "vm", img)
	vm.Spec.VMDiskImageTemplate.URL += "-other"
	vm.Spec.VMDiskImageTemplate.DiskSize = resource.MustParse("5Gi")
	createAndAwaitRunning(t, vm)
	differs := awaitCondition(t, vm, v1alpha1.ConditionImageDiffers, metav1.ConditionTrue)
	assert.Contains(t, differs, "the template has another url, diskSize")
	env.AwaitEvent(t, vm, v1alpha1.ConditionImageDiffers, "url, diskSize")
	after := env.AwaitSucceeded(t, img)
	assert.Equal(t, img.Generation, after.Generation)
	assert.Equal(t, img.Spec, after.Spec)

	env.Update(t, vm, func() { vm.Spec.VMDiskImageTemplate = img.Spec.DeepCopy() })
	awaitCondition(t, vm, v1alpha1.ConditionImageDiffers, metav1.ConditionFalse)
}

// TestVMRecoversFromFailedImage has a person correct the image: the VM runs.
func TestVMRecoversFromFailedImage(t *testing.T) {
	t.Parallel()
	ns := env.CreateNamespace(t)
	for name, path := range map[string]string{"imported": "/notfound/100ms/a", "asked": "/gone/a"} {
		env.Create(t, withImageTemplate(ns, name, env.NewSnapshottedImage(ns, name, path)))
	}
	for _, name := range []string{"imported", "asked"} {
		vm := testenv.NewMachine(ns, name, env.NewImage(ns, name, ""))
		got := awaitReason(t, vm, v1alpha1.ReasonImageFailed)
		assert.Equal(t, v1alpha1.MachineFailed, got.Status.Phase)
		assert.Equal(t, v1alpha1.PhaseFailed, got.Status.Image.Phase)
		assert.Contains(t, got.Status.Message, "VMDiskImage "+ns+"/"+name+" failed: NotFound: ")
		env.AwaitEvent(t, got, string(v1alpha1.ReasonImageFailed), "NotFound")
		img := env.NewImage(ns, name, "")
		env.Update(t, img, func() { img.Spec.URL = env.Source.URL + "/ok/100ms/right" })
		awaitRunning(t, vm)
		assert.Contains(t, awaitCondition(t, vm, v1alpha1.ConditionImageDiffers, metav1.ConditionTrue), "another url")
	}
}

// TestVMDeletedDuringImport wants the import to go on: other VMs may reference the image, and
// the download has cost egress.
func TestVMDeletedDuringImport(t *testing.T) {
	testenv.RunInTurn(t, 11)
	t.Parallel()
	ns, farm := env.CreateNamespace(t), env.CreateNamespace(t)
	img := env.NewSnapshottedImage(farm, "image", "/ok/15s/a")
	vm := withImageTemplate(ns, "vm", img)
	env.Create(t, vm)
	env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Image != nil && vm.Status.Image.Phase == v1alpha1.PhaseSyncing
	})
	deleteObject(t, vm)
	env.AwaitGone(t, vm)
	env.AwaitSucceeded(t, img)
	after := awaitHolders(t, img)
	assert.EqualValues(t, 1, after.Status.LastAttempt)
	assert.Empty(t, listLeftovers(t, ns))
	var clones cdiv1.DataVolumeList
	require.NoError(t, env.Client().List(t.Context(), &clones, client.InNamespace(ns)))
	assert.Empty(t, clones.Items)
}

// withCDIStopped calls a function while clones make no progress.
func withCDIStopped(t *testing.T, do func()) {
	t.Helper()
	require.NoError(t, env.StopCDI())
	t.Cleanup(func() { require.NoError(t, env.StartCDI()) }) // also where do fails the test
	do()
	require.NoError(t, env.StartCDI())
}

func cloneSourceOf(dv *cdiv1.DataVolume) string { return dv.Annotations[v1alpha1.AnnotationClonedFrom] }

// TestImageChangedBeforeRootDiskExists wants the pin to be dropped and the unfinished clone to
// be deleted.
func TestImageChangedBeforeRootDiskExists(t *testing.T) {
	testenv.RunInTurn(t, 4)
	ns := env.CreateNamespace(t)
	one, other := env.NewSnapshottedImage(ns, "one", "/ok/100ms/1"), env.NewSnapshottedImage(ns, "other", "/ok/100ms/2")
	env.Create(t, one, other)
	one, other = env.AwaitSucceeded(t, one), env.AwaitSucceeded(t, other)
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
	require.True(t, testenv.AwaitCondition(t, func() bool {
		require.NoError(t, env.Client().List(t.Context(), &claims, client.InNamespace(ns)))
		return len(claims.Items) == 3
	}), "two images and a disk have these claims: %v", listLeftovers(t, ns))
}

// TestImageChangedAfterRootDiskExists wants the VM to keep its disk, and to hold both images
// until a new disk replaces the old one.
func TestImageChangedAfterRootDiskExists(t *testing.T) {
	testenv.RunInTurn(t, 21)
	t.Parallel()
	ns := env.CreateNamespace(t)
	one, other := env.NewSnapshottedImage(ns, "one", "/ok/100ms/1"), env.NewSnapshottedImage(ns, "other", "/ok/100ms/2")
	env.Create(t, one, other)
	one, other = env.AwaitSucceeded(t, one), env.AwaitSucceeded(t, other)
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
	setRunStrategy(t, vm, kubevirtv1.RunStrategyAlways)
	awaitRunning(t, vm)
}

// TestDeletedRootDiskIsCloned wants a new clone of the pinned revision, though the image serves
// another one.
func TestDeletedRootDiskIsCloned(t *testing.T) {
	testenv.RunInTurn(t, 10)
	t.Parallel()
	ns := env.CreateNamespace(t)
	img := env.ImportImage(t, env.NewSnapshottedImage(ns, "image", "/ok/100ms/1"))
	vm := testenv.NewMachine(ns, "vm", img)
	former := createAndAwaitRunning(t, vm)
	disk := requireObject(t, rootDiskOf(vm))

	env.Update(t, img, func() { img.Spec.URL += "-newer" })
	env.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool {
		return got.Status.Phase == v1alpha1.PhaseSucceeded && got.Status.Serving.Revision != former.Status.Pinned.Revision
	})
	stopVM(t, vm)
	deleteAndAwaitGone(t, requireObject(t, rootDiskOf(vm)))
	again := awaitObject(t, rootDiskOf(vm), "cloned again", func(dv *cdiv1.DataVolume) bool { return dv.Status.Phase == cdiv1.Succeeded })
	assert.Equal(t, cloneSourceOf(disk), cloneSourceOf(again))
	setRunStrategy(t, vm, kubevirtv1.RunStrategyAlways)
	got := awaitRunning(t, vm)
	assert.Equal(t, former.Status.Pinned, got.Status.Pinned)
	newer := testenv.NewMachine(ns, "newer", img)
	assert.NotEqual(t, former.Status.Pinned.Revision, createAndAwaitRunning(t, newer).Status.Pinned.Revision)
	kept := awaitHolders(t, img, newer, vm)
	assert.Contains(t, kept.Status.Message, "earlier storage is kept for the VirtualMachines built from it: "+ns+"/vm")

	deleteObject(t, vm)
	env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool { return len(img.Status.Revisions) == 1 })
	var imports cdiv1.DataVolumeList
	require.True(t, testenv.AwaitCondition(t, func() bool {
		require.NoError(t, env.Client().List(t.Context(), &imports, client.InNamespace(ns), client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)}))
		return len(imports.Items) == 1
	}), "the old revision is still there: %v", listLeftovers(t, ns))
}

// TestDeletedSnapshotDuringClone deletes a snapshot before and during a clone: the image gets
// another one, which is cloned.
func TestDeletedSnapshotDuringClone(t *testing.T) {
	ns := env.CreateNamespace(t)
	img := env.ImportImage(t, env.NewSnapshottedImage(ns, "image", "/ok/100ms/1"))
	vm := testenv.NewMachine(ns, "vm", img)
	former := createAndAwaitRunning(t, vm)
	made := map[string]bool{former.Status.Pinned.VolumeSnapshot: true}
	another := func() {
		img = env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
			return img.Status.Serving != nil && img.Status.Phase == v1alpha1.PhaseSucceeded && !made[img.Status.Serving.VolumeSnapshot]
		})
		made[img.Status.Serving.VolumeSnapshot] = true
	}
	deleteObject(t, snapshotOf(ns, former.Status.Pinned.VolumeSnapshot))
	another()
	assert.Equal(t, former.Status.Pinned, awaitRunning(t, vm).Status.Pinned, "the disk is of that snapshot all the same")

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

// TestForgedRootDiskIsNotUsed plays an author who may read one image of a namespace and wants
// the content of another: he creates a root disk with the agent's labels himself.
func TestForgedRootDiskIsNotUsed(t *testing.T) {
	testenv.RunInTurn(t, 22)
	t.Parallel()
	farm, ns := env.CreateNamespace(t), env.CreateNamespace(t)
	img := env.NewSnapshottedImage(farm, "image", "/ok/100ms/image.qcow2")
	treasure := newBlankDataVolume(farm, "treasure")
	env.Create(t, treasure)
	img = env.ImportImage(t, img)
	awaitPopulated(t, treasure)

	vm := testenv.NewMachine(ns, "vm", img)
	vm.Spec.IgnoreOnDeploy = true
	env.Create(t, vm)
	vm = awaitReason(t, vm, v1alpha1.ReasonIgnoredOnDeploy)
	forged := newBlankDataVolume(ns, kubevirt.RootDiskName(vm))
	env.Create(t, forged)
	awaitPopulated(t, forged)
	env.Update(t, forged, func() { // it is complete by now: the agent leaves it alone
		forged.Labels = map[string]string{v1alpha1.LabelMachineUID: string(vm.UID)}
		forged.Annotations[v1alpha1.AnnotationClonedFrom] = strings.Join([]string{string(img.UID), img.Status.Revision, "1", treasure.Name}, "/")
	})
	vm = env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		seen, _ := testenv.IsConditionTrue(vm, v1alpha1.ConditionRootDiskReady)
		return seen
	})
	assert.Nil(t, vm.Status.Pinned, "what anybody can write on a DataVolume is not believed")

	require.NoError(t, env.Client().Delete(t.Context(), forged))
	env.AwaitGone(t, forged)
	env.Update(t, vm, func() { vm.Spec.IgnoreOnDeploy = false })
	vm = awaitRunning(t, vm)
	disk := &cdiv1.DataVolume{}
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKey{Namespace: ns, Name: kubevirt.RootDiskName(vm)}, disk))
	require.NotNil(t, disk.Spec.Source.Snapshot)
	assert.Equal(t, img.Status.Serving.VolumeSnapshot, disk.Spec.Source.Snapshot.Name)
	assert.Equal(t, img.Status.Serving.VolumeSnapshot, vm.Status.Pinned.VolumeSnapshot)
}

func newBlankDataVolume(namespace, name string) *cdiv1.DataVolume {
	class := "sim-csi"
	return &cdiv1.DataVolume{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{
			"cdi.kubevirt.io/storage.bind.immediate.requested": "true", "cdi.kubevirt.io/storage.deleteAfterCompletion": "false",
		}},
		Spec: cdiv1.DataVolumeSpec{
			Source: &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}},
			Storage: &cdiv1.StorageSpec{StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			}},
		},
	}
}

func awaitPopulated(t *testing.T, dv *cdiv1.DataVolume) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return env.Client().Get(t.Context(), client.ObjectKeyFromObject(dv), dv) == nil && dv.Status.Phase == cdiv1.Succeeded
	}), "DataVolume %s/%s is %s", dv.Namespace, dv.Name, dv.Status.Phase)
}
