//go:build linux

package workspaces

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

func strategyOf(t *testing.T, vm *v1alpha1.VirtualMachine) kubevirtv1.VirtualMachineRunStrategy {
	t.Helper()
	return ptr.Deref(read(t, theirs(vm)).Spec.RunStrategy, "")
}

func cores(t *testing.T, vm *v1alpha1.VirtualMachine) uint32 {
	t.Helper()
	return read(t, theirs(vm)).Spec.Template.Spec.Domain.CPU.Cores
}

func setCores(t *testing.T, vm *v1alpha1.VirtualMachine, n string) {
	t.Helper()
	place.Change(t, vm, func() { vm.Spec.Resources.CPU = ptr.To(resource.MustParse(n)) })
}

// withCores waits until another instance than one runs, with so many cores.
func withCores(t *testing.T, vm *v1alpha1.VirtualMachine, not types.UID, n uint32) {
	t.Helper()
	eventually(t, instance(vm), "another one with the new spec", func(o *kubevirtv1.VirtualMachineInstance) bool {
		return o.UID != not && o.Status.Phase == kubevirtv1.Running && o.Spec.Domain.CPU.Cores == n
	})
}

// TestRunStrategyIsLeftToOthers where the spec says nothing of it.
func TestRunStrategyIsLeftToOthers(t *testing.T) {
	t.Parallel()
	vm := scene.Machine(place.Namespace(t), "vm", base(t))
	started(t, vm)
	assert.Equal(t, kubevirtv1.RunStrategyAlways, strategyOf(t, vm))
	stopped(t, vm)
	place.EventuallyMachine(t, vm, scene.MachineReady)

	setCores(t, vm, "2")
	eventually(t, theirs(vm), "as the spec says now", func(o *kubevirtv1.VirtualMachine) bool { return o.Spec.Template.Spec.Domain.CPU.Cores == 2 })
	because(t, vm, v1alpha1.ReasonStopped)
	assert.Equal(t, kubevirtv1.RunStrategyHalted, strategyOf(t, vm))
	run(t, vm, kubevirtv1.RunStrategyAlways)
	withCores(t, vm, "", 2)
	runs(t, vm)
}

// TestRunStrategyOfTheSpec is put back, and carried out at once though the rest
// of a change waits for a restart.
func TestRunStrategyOfTheSpec(t *testing.T) {
	t.Parallel()
	vm := scene.Machine(place.Namespace(t), "vm", base(t))
	vm.Spec.RunStrategy = "Always"
	started(t, vm)
	run(t, vm, kubevirtv1.RunStrategyManual)
	eventually(t, theirs(vm), "put back", func(o *kubevirtv1.VirtualMachine) bool { return *o.Spec.RunStrategy == kubevirtv1.RunStrategyAlways })

	setCores(t, vm, "2")
	says(t, vm, v1alpha1.ConditionRestartRequired, metav1.ConditionTrue)
	guest := read(t, instance(vm))
	place.Change(t, vm, func() { vm.Spec.RunStrategy = "Halted" })
	place.Gone(t, instance(vm))
	because(t, vm, v1alpha1.ReasonStopped)
	says(t, vm, v1alpha1.ConditionRestartRequired, metav1.ConditionFalse)
	assert.EqualValues(t, 2, cores(t, vm))
	place.Change(t, vm, func() { vm.Spec.RunStrategy = "Always" })
	withCores(t, vm, guest.UID, 2)
	runs(t, vm)
}

// TestChangedSpecWaitsForARestart of the instance.
func TestChangedSpecWaitsForARestart(t *testing.T) {
	t.Parallel()
	vm := scene.Machine(place.Namespace(t), "vm", base(t))
	started(t, vm)
	before, guest := read(t, theirs(vm)), read(t, instance(vm))
	setCores(t, vm, "3")
	place.Change(t, vm, func() {
		vm.Spec.Version = "2"
		vm.Spec.Users = []v1alpha1.User{{Name: "late", SSHAuthorizedKeys: []string{"ssh-ed25519 AAAA late"}}}
	})
	assert.Contains(t, says(t, vm, v1alpha1.ConditionRestartRequired, metav1.ConditionTrue), "virtctl restart vm")
	runs(t, vm)
	after := read(t, theirs(vm))
	assert.Equal(t, before.Generation, after.Generation, "nothing of it is pushed")
	assert.Equal(t, before.Labels, after.Labels)
	assert.Equal(t, guest.UID, read(t, instance(vm)).UID)

	// A guest takes a while to end; one of the simulated node's does not.
	const ending = "pelotech.ot/still-ending"
	place.Change(t, guest, func() { guest.Finalizers = append(guest.Finalizers, ending) })
	remove(t, guest)
	eventually(t, theirs(vm), "as the spec says now", func(o *kubevirtv1.VirtualMachine) bool { return o.Spec.Template.Spec.Domain.CPU.Cores == 3 })
	place.Change(t, guest, func() {
		guest.Finalizers = slices.DeleteFunc(guest.Finalizers, func(f string) bool { return f == ending })
	})
	withCores(t, vm, guest.UID, 3)
	says(t, vm, v1alpha1.ConditionRestartRequired, metav1.ConditionFalse)
	assert.Equal(t, "2", read(t, instance(vm)).Labels[v1alpha1.LabelVersion])
	assert.Contains(t, string(read(t, told(vm)).Data["userdata"]), "late")
	runs(t, vm)

	setCores(t, vm, "1")
	says(t, vm, v1alpha1.ConditionRestartRequired, metav1.ConditionTrue)
	setCores(t, vm, "3")
	says(t, vm, v1alpha1.ConditionRestartRequired, metav1.ConditionFalse)
}

// TestRerunOnFailureWaitsForTheFormerInstance to be gone: virt-controller would
// start no other (KubeVirt 1.8.0, pkg/virt-controller/watch/vm/vm.go:1069).
func TestRerunOnFailureWaitsForTheFormerInstance(t *testing.T) {
	t.Parallel()
	vm := scene.Machine(place.Namespace(t), "vm", base(t))
	vm.Spec.RunStrategy = "Always"
	started(t, vm)
	guest := read(t, instance(vm))
	const ending = "pelotech.ot/still-ending"
	place.Change(t, guest, func() { guest.Finalizers = append(guest.Finalizers, ending) })
	place.Change(t, vm, func() { vm.Spec.RunStrategy = "Halted" })
	eventually(t, theirs(vm), "stopped, with its instance still there", func(o *kubevirtv1.VirtualMachine) bool {
		return o.Status.PrintableStatus == kubevirtv1.VirtualMachineStatusStopped && o.Status.Created
	})
	because(t, vm, v1alpha1.ReasonStopped)

	place.Change(t, vm, func() { vm.Spec.RunStrategy = "RerunOnFailure" })
	waits := place.EventuallyMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.ObservedGeneration == vm.Generation && vm.Status.Reason == v1alpha1.ReasonStarting
	})
	assert.Equal(t, v1alpha1.MachineProvisioning, waits.Status.Phase)
	assert.Contains(t, waits.Status.Message, "former instance")
	assert.Equal(t, kubevirtv1.RunStrategyHalted, strategyOf(t, vm))
	place.Change(t, guest, func() {
		guest.Finalizers = slices.DeleteFunc(guest.Finalizers, func(f string) bool { return f == ending })
	})
	withCores(t, vm, guest.UID, 1)
	runs(t, vm)
	assert.Equal(t, kubevirtv1.RunStrategyRerunOnFailure, strategyOf(t, vm))
}

// TestIgnoreOnDeploy keeps a machine from being made, and one that is there from
// being touched.
func TestIgnoreOnDeploy(t *testing.T) {
	t.Parallel()
	vm := scene.Machine(place.Namespace(t), "vm", base(t))
	vm.Spec.IgnoreOnDeploy = true
	place.Create(t, vm)
	ignored := because(t, vm, v1alpha1.ReasonIgnoredOnDeploy)
	assert.Equal(t, v1alpha1.MachineReady, ignored.Status.Phase)
	assert.Nil(t, ignored.Status.Pinned)
	assert.Empty(t, leftIn(t, vm.Namespace))

	place.Change(t, vm, func() { vm.Spec.IgnoreOnDeploy = false })
	runs(t, vm)
	before, guest := read(t, theirs(vm)), read(t, instance(vm))
	place.Change(t, vm, func() { vm.Spec.IgnoreOnDeploy = true; vm.Spec.RunStrategy = "Halted" })
	runs(t, vm)
	their := theirs(vm)
	place.Change(t, their, func() { their.Spec.Template.Spec.Domain.CPU.Cores = 5 })
	setCores(t, vm, "2")
	runs(t, vm)
	after := read(t, theirs(vm))
	assert.Equal(t, before.UID, after.UID)
	assert.EqualValues(t, 5, after.Spec.Template.Spec.Domain.CPU.Cores, "drift is not put back")
	assert.Equal(t, kubevirtv1.RunStrategyAlways, *after.Spec.RunStrategy)
	require.Equal(t, guest.UID, read(t, instance(vm)).UID)

	disk := read(t, rootDisk(vm))
	removed(t, theirs(vm))
	because(t, vm, v1alpha1.ReasonIgnoredOnDeploy)
	assert.Equal(t, disk.UID, read(t, rootDisk(vm)).UID, "a disk that a guest has written to is kept")
	place.Change(t, vm, func() { vm.Spec.IgnoreOnDeploy = false; vm.Spec.RunStrategy = "" })
	runs(t, vm)
	assert.EqualValues(t, 2, cores(t, vm))
	assert.Equal(t, disk.UID, read(t, rootDisk(vm)).UID)
}
