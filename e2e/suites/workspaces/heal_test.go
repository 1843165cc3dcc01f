//go:build linux

package workspaces

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestDeletedKubeVirtVMIsRecreated is made again, with the disk that it had.
func TestDeletedKubeVirtVMIsRecreated(t *testing.T) {
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	createAndAwaitRunning(t, vm)
	first, disk, guest := requireObject(t, kubeVirtVMOf(vm)), requireObject(t, rootDiskOf(vm)), requireObject(t, kubeVirtVMIOf(vm))
	deleteAndAwaitGone(t, kubeVirtVMOf(vm))
	awaitObject(t, kubeVirtVMOf(vm), "made again", func(o *kubevirtv1.VirtualMachine) bool { return o.UID != first.UID && o.Status.Ready })
	awaitRunning(t, vm)
	assert.Equal(t, disk.UID, requireObject(t, rootDiskOf(vm)).UID)
	assert.NotEqual(t, guest.UID, requireObject(t, kubeVirtVMIOf(vm)).UID)
}

// TestDeletedCloudInitSecretIsRecreated is there again when the machine starts the next
// time: nobody watches Secrets.
func TestDeletedCloudInitSecretIsRecreated(t *testing.T) {
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	vm.Spec.Users = []v1alpha1.User{{Name: "demo", PlainTextPasswd: "demo-pwd"}}
	createAndAwaitRunning(t, vm)
	was := requireObject(t, cloudInitSecretOf(vm))
	deleteAndAwaitGone(t, cloudInitSecretOf(vm))
	stopVM(t, vm)
	again := awaitObject(t, cloudInitSecretOf(vm), "made again", func(*corev1.Secret) bool { return true })
	assert.Equal(t, was.Data, again.Data)
	assert.Equal(t, was.Labels, again.Labels)
	runVM(t, vm, kubevirtv1.RunStrategyAlways)
	awaitRunning(t, vm)
}

// TestDriftIsReverted where the agent owns a field; what others say stays.
func TestDriftIsReverted(t *testing.T) {
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	vm.Spec.BaseVM = "ubuntu"
	createAndAwaitRunning(t, vm)
	guest := requireObject(t, kubeVirtVMIOf(vm))
	their := kubeVirtVMOf(vm)
	env.Update(t, their, func() {
		their.Labels["theirs"], their.Labels[v1alpha1.LabelBaseVM] = "stays", "drifts"
		their.Annotations["theirs"] = "stays"
		their.Spec.Template.Spec.Domain.CPU.Cores = 7
		their.Spec.Template.Spec.Domain.Devices.Disks[0].BootOrder = nil
		their.Spec.Template.Spec.Domain.Devices.Disks = append(their.Spec.Template.Spec.Domain.Devices.Disks, kubevirtv1.Disk{Name: "hot", DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{}}})
		their.Spec.Template.Spec.Volumes = append(their.Spec.Template.Spec.Volumes, kubevirtv1.Volume{Name: "hot", VolumeSource: kubevirtv1.VolumeSource{EmptyDisk: &kubevirtv1.EmptyDiskSource{Capacity: *vm.Spec.Resources.Memory}}})
		their.Spec.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "linux"}
	})
	got := awaitObject(t, kubeVirtVMOf(vm), "as the spec says", func(o *kubevirtv1.VirtualMachine) bool {
		return o.Spec.Template.Spec.Domain.CPU.Cores == 1 && o.Spec.Template.Spec.Domain.Devices.Disks[0].BootOrder != nil
	})
	assert.Equal(t, "hot", got.Spec.Template.Spec.Domain.Devices.Disks[2].Name, "as virtctl addvolume adds it")
	assert.Equal(t, "hot", got.Spec.Template.Spec.Volumes[2].Name)
	assert.Equal(t, "ubuntu", got.Labels[v1alpha1.LabelBaseVM])
	assert.Equal(t, "stays", got.Labels["theirs"])
	assert.Equal(t, "stays", got.Annotations["theirs"])
	assert.Equal(t, map[string]string{"kubernetes.io/os": "linux"}, got.Spec.Template.Spec.NodeSelector, "the agent has no field for it")
	assert.Equal(t, guest.UID, requireObject(t, kubeVirtVMIOf(vm)).UID)
	awaitRunning(t, vm)
}
