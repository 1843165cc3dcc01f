//go:build linux

package workspaces

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// TestKubeVirtMachineDeleted is made again, with the disk that it had.
func TestKubeVirtMachineDeleted(t *testing.T) {
	t.Parallel()
	vm := scene.Machine(place.Namespace(t), "vm", base(t))
	started(t, vm)
	first, disk, guest := read(t, theirs(vm)), read(t, rootDisk(vm)), read(t, instance(vm))
	removed(t, theirs(vm))
	eventually(t, theirs(vm), "made again", func(o *kubevirtv1.VirtualMachine) bool { return o.UID != first.UID && o.Status.Ready })
	runs(t, vm)
	assert.Equal(t, disk.UID, read(t, rootDisk(vm)).UID)
	assert.NotEqual(t, guest.UID, read(t, instance(vm)).UID)
}

// TestCloudInitSecretDeleted is there again when the machine starts the next
// time: nobody watches Secrets.
func TestCloudInitSecretDeleted(t *testing.T) {
	t.Parallel()
	vm := scene.Machine(place.Namespace(t), "vm", base(t))
	vm.Spec.Users = []v1alpha1.User{{Name: "demo", PlainTextPasswd: "demo-pwd"}}
	started(t, vm)
	was := read(t, told(vm))
	removed(t, told(vm))
	stopped(t, vm)
	again := eventually(t, told(vm), "made again", func(*corev1.Secret) bool { return true })
	assert.Equal(t, was.Data, again.Data)
	assert.Equal(t, was.Labels, again.Labels)
	run(t, vm, kubevirtv1.RunStrategyAlways)
	runs(t, vm)
}

// TestDriftIsPutBack where the agent owns a field; what others say stays.
func TestDriftIsPutBack(t *testing.T) {
	t.Parallel()
	vm := scene.Machine(place.Namespace(t), "vm", base(t))
	vm.Spec.BaseVM = "ubuntu"
	started(t, vm)
	guest := read(t, instance(vm))
	their := theirs(vm)
	place.Change(t, their, func() {
		their.Labels["theirs"], their.Labels[v1alpha1.LabelBaseVM] = "stays", "drifts"
		their.Annotations["theirs"] = "stays"
		their.Spec.Template.Spec.Domain.CPU.Cores = 7
		their.Spec.Template.Spec.Domain.Devices.Disks[0].BootOrder = nil
		their.Spec.Template.Spec.Domain.Devices.Disks = append(their.Spec.Template.Spec.Domain.Devices.Disks, kubevirtv1.Disk{Name: "hot", DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{}}})
		their.Spec.Template.Spec.Volumes = append(their.Spec.Template.Spec.Volumes, kubevirtv1.Volume{Name: "hot", VolumeSource: kubevirtv1.VolumeSource{EmptyDisk: &kubevirtv1.EmptyDiskSource{Capacity: *vm.Spec.Resources.Memory}}})
		their.Spec.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "linux"}
	})
	got := eventually(t, theirs(vm), "as the spec says", func(o *kubevirtv1.VirtualMachine) bool {
		return o.Spec.Template.Spec.Domain.CPU.Cores == 1 && o.Spec.Template.Spec.Domain.Devices.Disks[0].BootOrder != nil
	})
	assert.Equal(t, "hot", got.Spec.Template.Spec.Domain.Devices.Disks[2].Name, "as virtctl addvolume adds it")
	assert.Equal(t, "hot", got.Spec.Template.Spec.Volumes[2].Name)
	assert.Equal(t, "ubuntu", got.Labels[v1alpha1.LabelBaseVM])
	assert.Equal(t, "stays", got.Labels["theirs"])
	assert.Equal(t, "stays", got.Annotations["theirs"])
	assert.Equal(t, map[string]string{"kubernetes.io/os": "linux"}, got.Spec.Template.Spec.NodeSelector, "the agent has no field for it")
	assert.Equal(t, guest.UID, read(t, instance(vm)).UID)
	runs(t, vm)
}
