//go:build linux

package workspaces

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func dataDiskOf(vm *v1alpha1.VirtualMachine, name string) *cdiv1.DataVolume {
	return &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: kubevirt.DataDiskName(vm, name)}}
}

func imageDisk(name string, img *v1alpha1.VMDiskImage) v1alpha1.Disk {
	return v1alpha1.Disk{Name: name, Image: &v1alpha1.ImageReference{Namespace: img.Namespace, Name: img.Name}}
}

func blankDisk(name string) v1alpha1.Disk {
	return v1alpha1.Disk{Name: name, Size: ptr.To(resource.MustParse("64Mi")), StorageClass: "sim-csi"}
}

// TestDataDisks takes a machine with disks of two images and a blank one through its life: it
// waits for each, holds their images, keeps what is removed, and leaves nothing.
func TestDataDisks(t *testing.T) {
	testenv.RunInTurn(t, 9)
	t.Parallel()
	ns, farm := env.CreateNamespace(t), env.CreateNamespace(t)
	root := sharedImage(t)
	tools := env.ImportImage(t, env.NewSnapshottedImage(farm, "tools", "/ok/100ms/tools"))
	models := env.NewSnapshottedImage(farm, "models", "/ok/100ms/models")
	vm := testenv.NewMachine(ns, "vm", root)
	vm.Spec.Disks = []v1alpha1.Disk{imageDisk("tools", tools), imageDisk("models", models), blankDisk("scratch")}
	env.Create(t, vm)
	waiting := awaitReason(t, vm, v1alpha1.ReasonImageMissing)
	assert.Contains(t, waiting.Status.Message, "disk models: VMDiskImage "+farm+"/models does not exist")
	models = env.ImportImage(t, models)
	vm = awaitRunning(t, vm)
	awaitCondition(t, vm, v1alpha1.ConditionDisksReady, metav1.ConditionTrue)
	for i, img := range []*v1alpha1.VMDiskImage{tools, models} {
		require.NotNil(t, vm.Status.Disks[i].Pinned)
		assert.Equal(t, img.UID, vm.Status.Disks[i].Pinned.UID)
		awaitHolders(t, img, vm)
	}
	volumes := map[string]string{}
	for _, volume := range requireObject(t, kubeVirtVMOf(vm)).Spec.Template.Spec.Volumes {
		if volume.DataVolume != nil {
			volumes[volume.Name] = volume.DataVolume.Name
		}
	}
	assert.Equal(t, map[string]string{
		"root": kubevirt.RootDiskName(vm), "tools": dataDiskOf(vm, "tools").Name, "models": dataDiskOf(vm, "models").Name, "scratch": dataDiskOf(vm, "scratch").Name,
	}, volumes)
	assert.NotNil(t, requireObject(t, dataDiskOf(vm, "scratch")).Spec.Source.Blank)

	deleteObject(t, tools)
	leaving := env.AwaitImage(t, tools, testenv.InPhase(v1alpha1.PhaseTerminating))
	assert.Contains(t, leaving.Status.Message, "stays available while it is referenced by "+ns+"/vm")

	// A disk that is removed stays, and so does its image.
	env.Update(t, vm, func() { vm.Spec.Disks = vm.Spec.Disks[1:] })
	assert.Contains(t, awaitCondition(t, vm, v1alpha1.ConditionRestartRequired, metav1.ConditionTrue), "restart it to apply the change")
	assert.Contains(t, awaitCondition(t, vm, v1alpha1.ConditionSpecAdjusted, metav1.ConditionTrue), "disk tools is not in spec.disks and is kept until the machine is deleted")
	stopVM(t, vm)
	awaitObject(t, kubeVirtVMOf(vm), "the disk is detached", func(kv *kubevirtv1.VirtualMachine) bool {
		for _, volume := range kv.Spec.Template.Spec.Volumes {
			if volume.Name == "tools" {
				return false
			}
		}
		return true
	})
	requireObject(t, dataDiskOf(vm, "tools"))
	assert.Equal(t, v1alpha1.PhaseTerminating, awaitHolders(t, tools, vm).Status.Phase)
	deleteAndAwaitGone(t, dataDiskOf(vm, "tools"))
	env.AwaitGone(t, tools)

	// A disk that is gone is not made again.
	lost := requireObject(t, dataDiskOf(vm, "scratch"))
	deleteAndAwaitGone(t, lost)
	awaitFailure(t, vm, v1alpha1.ReasonDataDiskLost)
	env.Update(t, vm, func() { vm.Spec.Disks[1].Name = "fresh" })
	awaitReason(t, vm, v1alpha1.ReasonStopped)
	requireObject(t, dataDiskOf(vm, "fresh"))
	setRunStrategy(t, vm, kubevirtv1.RunStrategyAlways)
	awaitRunning(t, vm)

	deleteAndAwaitNothingLeft(t, vm)
	awaitHolders(t, models)
}

// TestDeletedClaimOfDataDisk wants the claim that CDI makes in place of a deleted one, which is empty,
// to be shown as no disk of the guest until somebody accepts it.
func TestDeletedClaimOfDataDisk(t *testing.T) {
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	vm.Spec.Disks = []v1alpha1.Disk{blankDisk("scratch")}
	vm = createAndAwaitRunning(t, vm)
	stopVM(t, vm)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: dataDiskOf(vm, "scratch").Name}}
	former := requireObject(t, claim).UID
	deleteAndAwaitGone(t, claim)
	replaced := awaitObject(t, claim, "CDI makes another claim", func(claim *corev1.PersistentVolumeClaim) bool {
		return claim.UID != former && claim.Status.Phase == corev1.ClaimBound
	})
	lost := env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Reason == v1alpha1.ReasonDataDiskLost && strings.Contains(vm.Status.Message, "another one has taken its place")
	})
	assert.Equal(t, former, lost.Status.Disks[0].Volume.ClaimUID)
	assert.Equal(t, cdiv1.Succeeded, requireObject(t, dataDiskOf(vm, "scratch")).Status.Phase)
	assert.Contains(t, lost.Status.Message, v1alpha1.AnnotationAcceptClaim+"="+string(replaced.UID))
	env.Update(t, replaced, func() {
		metav1.SetMetaDataAnnotation(&replaced.ObjectMeta, v1alpha1.AnnotationAcceptClaim, string(replaced.UID))
	})
	accepted := awaitReason(t, vm, v1alpha1.ReasonStopped)
	assert.Equal(t, replaced.UID, accepted.Status.Disks[0].Volume.ClaimUID)
}

// TestBlankDiskOfMissingStorageClass wants the cause to be said, and the machine to start once it
// is gone.
func TestBlankDiskOfMissingStorageClass(t *testing.T) {
	t.Parallel()
	ns := env.CreateNamespace(t)
	vm := testenv.NewMachine(ns, "vm", sharedImage(t))
	vm.Spec.Disks = []v1alpha1.Disk{blankDisk("scratch")}
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late-" + ns}, Provisioner: simulator.ProvisionerForClass(simulator.ClassCSI)}
	vm.Spec.Disks[0].StorageClass = class.Name
	env.Create(t, vm)
	got := env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool { return vm.Status.Phase == v1alpha1.MachineFailed })
	assert.Contains(t, got.Status.Message, "disk scratch of storageClass "+class.Name+", is not created")
	assert.Contains(t, got.Status.Message, "create the StorageClass, or name one that exists")
	env.Create(t, class)
	t.Cleanup(func() { assert.NoError(t, env.Client().Delete(context.Background(), class)) })
	env.SetClaimProperties(t, class.Name)
	awaitRunning(t, vm)
}

// TestMigrationIsRecordedWhileChangesWait has a person migrate the root volume of a running VM with a change
// that waits for a restart, and remove the strategy: the volume stays when the change is applied.
func TestMigrationIsRecordedWhileChangesWait(t *testing.T) {
	t.Parallel()
	vm := createAndAwaitRunning(t, testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t)))
	setCores(t, vm, "2")
	awaitCondition(t, vm, v1alpha1.ConditionRestartRequired, metav1.ConditionTrue)
	o := requireObject(t, kubeVirtVMOf(vm))
	env.Update(t, o, func() {
		o.Spec.UpdateVolumesStrategy = ptr.To(kubevirtv1.UpdateVolumesStrategyMigration)
		o.Spec.Template.Spec.Volumes[0].DataVolume.Name = "fast"
	})
	awaitObject(t, o, "recorded", func(o *kubevirtv1.VirtualMachine) bool {
		return o.Annotations[v1alpha1.AnnotationMigratedVolumes] == "root=fast"
	})
	env.Update(t, o, func() { o.Spec.UpdateVolumesStrategy = nil })
	setRunStrategy(t, vm, kubevirtv1.RunStrategyHalted)
	awaitObject(t, o, "as the spec says now", func(o *kubevirtv1.VirtualMachine) bool { return o.Spec.Template.Spec.Domain.CPU.Cores == 2 })
	assert.Equal(t, "fast", o.Spec.Template.Spec.Volumes[0].DataVolume.Name)
	assert.Equal(t, "root=fast", o.Annotations[v1alpha1.AnnotationMigratedVolumes])
}
