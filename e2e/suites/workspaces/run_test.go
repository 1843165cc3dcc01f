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
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func readRunStrategy(t *testing.T, vm *v1alpha1.VirtualMachine) kubevirtv1.VirtualMachineRunStrategy {
	t.Helper()
	return ptr.Deref(requireObject(t, kubeVirtVMOf(vm)).Spec.RunStrategy, "")
}

func readCores(t *testing.T, vm *v1alpha1.VirtualMachine) uint32 {
	t.Helper()
	return requireObject(t, kubeVirtVMOf(vm)).Spec.Template.Spec.Domain.CPU.Cores
}

func setCores(t *testing.T, vm *v1alpha1.VirtualMachine, n string) {
	t.Helper()
	env.Update(t, vm, func() { vm.Spec.Resources.CPU = ptr.To(resource.MustParse(n)) })
}

// awaitNewInstance waits until another instance than one runs, with so many cores.
func awaitNewInstance(t *testing.T, vm *v1alpha1.VirtualMachine, not types.UID, n uint32) {
	t.Helper()
	awaitObject(t, kubeVirtVMIOf(vm), "another one with the new spec", func(o *kubevirtv1.VirtualMachineInstance) bool {
		return o.UID != not && o.Status.Phase == kubevirtv1.Running && o.Spec.Domain.CPU.Cores == n
	})
}

// TestUnsetRunStrategyIsLeftAlone where the spec says nothing of it.
func TestUnsetRunStrategyIsLeftAlone(t *testing.T) {
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	createAndAwaitRunning(t, vm)
	assert.Equal(t, kubevirtv1.RunStrategyAlways, readRunStrategy(t, vm))
	stopVM(t, vm)
	env.AwaitMachine(t, vm, testenv.IsMachineReady)

	setCores(t, vm, "2")
	awaitObject(t, kubeVirtVMOf(vm), "as the spec says now", func(o *kubevirtv1.VirtualMachine) bool { return o.Spec.Template.Spec.Domain.CPU.Cores == 2 })
	awaitReason(t, vm, v1alpha1.ReasonStopped)
	assert.Equal(t, kubevirtv1.RunStrategyHalted, readRunStrategy(t, vm))
	runVM(t, vm, kubevirtv1.RunStrategyAlways)
	awaitNewInstance(t, vm, "", 2)
	awaitRunning(t, vm)
}

// TestSpecRunStrategyIsEnforced is put back, and carried out at once though the rest
// of a change waits for a restart.
func TestSpecRunStrategyIsEnforced(t *testing.T) {
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	vm.Spec.RunStrategy = "Always"
	createAndAwaitRunning(t, vm)
	runVM(t, vm, kubevirtv1.RunStrategyManual)
	awaitObject(t, kubeVirtVMOf(vm), "put back", func(o *kubevirtv1.VirtualMachine) bool { return *o.Spec.RunStrategy == kubevirtv1.RunStrategyAlways })

	setCores(t, vm, "2")
	awaitCondition(t, vm, v1alpha1.ConditionRestartRequired, metav1.ConditionTrue)
	guest := requireObject(t, kubeVirtVMIOf(vm))
	env.Update(t, vm, func() { vm.Spec.RunStrategy = "Halted" })
	env.AwaitGone(t, kubeVirtVMIOf(vm))
	awaitReason(t, vm, v1alpha1.ReasonStopped)
	awaitCondition(t, vm, v1alpha1.ConditionRestartRequired, metav1.ConditionFalse)
	assert.EqualValues(t, 2, readCores(t, vm))
	env.Update(t, vm, func() { vm.Spec.RunStrategy = "Always" })
	awaitNewInstance(t, vm, guest.UID, 2)
	awaitRunning(t, vm)
}

// TestChangedSpecWaitsForARestart of the instance.
func TestChangedSpecWaitsForARestart(t *testing.T) {
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	createAndAwaitRunning(t, vm)
	before, guest := requireObject(t, kubeVirtVMOf(vm)), requireObject(t, kubeVirtVMIOf(vm))
	setCores(t, vm, "3")
	env.Update(t, vm, func() {
		vm.Spec.Version = "2"
		vm.Spec.Users = []v1alpha1.User{{Name: "late", SSHAuthorizedKeys: []string{"ssh-ed25519 AAAA late"}}}
	})
	assert.Contains(t, awaitCondition(t, vm, v1alpha1.ConditionRestartRequired, metav1.ConditionTrue), "virtctl restart vm")
	awaitRunning(t, vm)
	after := requireObject(t, kubeVirtVMOf(vm))
	assert.Equal(t, before.Generation, after.Generation, "nothing of it is pushed")
	assert.Equal(t, before.Labels, after.Labels)
	assert.Equal(t, guest.UID, requireObject(t, kubeVirtVMIOf(vm)).UID)

	// A guest takes a while to end; one of the simulated node's does not.
	const ending = "pelotech.ot/still-ending"
	env.Update(t, guest, func() { guest.Finalizers = append(guest.Finalizers, ending) })
	deleteObject(t, guest)
	awaitObject(t, kubeVirtVMOf(vm), "as the spec says now", func(o *kubevirtv1.VirtualMachine) bool { return o.Spec.Template.Spec.Domain.CPU.Cores == 3 })
	env.Update(t, guest, func() {
		guest.Finalizers = slices.DeleteFunc(guest.Finalizers, func(f string) bool { return f == ending })
	})
	awaitNewInstance(t, vm, guest.UID, 3)
	awaitCondition(t, vm, v1alpha1.ConditionRestartRequired, metav1.ConditionFalse)
	assert.Equal(t, "2", requireObject(t, kubeVirtVMIOf(vm)).Labels[v1alpha1.LabelVersion])
	assert.Contains(t, string(requireObject(t, cloudInitSecretOf(vm)).Data["userdata"]), "late")
	awaitRunning(t, vm)

	setCores(t, vm, "1")
	awaitCondition(t, vm, v1alpha1.ConditionRestartRequired, metav1.ConditionTrue)
	setCores(t, vm, "3")
	awaitCondition(t, vm, v1alpha1.ConditionRestartRequired, metav1.ConditionFalse)
}

// TestRerunOnFailureWaitsForFormerInstance to be gone: virt-controller would
// start no other (KubeVirt 1.8.0, pkg/virt-controller/watch/vm/vm.go:1069).
func TestRerunOnFailureWaitsForFormerInstance(t *testing.T) {
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	vm.Spec.RunStrategy = "Always"
	createAndAwaitRunning(t, vm)
	guest := requireObject(t, kubeVirtVMIOf(vm))
	const ending = "pelotech.ot/still-ending"
	env.Update(t, guest, func() { guest.Finalizers = append(guest.Finalizers, ending) })
	env.Update(t, vm, func() { vm.Spec.RunStrategy = "Halted" })
	awaitObject(t, kubeVirtVMOf(vm), "stopped, with its instance still there", func(o *kubevirtv1.VirtualMachine) bool {
		return o.Status.PrintableStatus == kubevirtv1.VirtualMachineStatusStopped && o.Status.Created
	})
	awaitReason(t, vm, v1alpha1.ReasonStopped)

	env.Update(t, vm, func() { vm.Spec.RunStrategy = "RerunOnFailure" })
	waits := env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.ObservedGeneration == vm.Generation && vm.Status.Reason == v1alpha1.ReasonStarting
	})
	assert.Equal(t, v1alpha1.MachineProvisioning, waits.Status.Phase)
	assert.Contains(t, waits.Status.Message, "former instance")
	assert.Equal(t, kubevirtv1.RunStrategyHalted, readRunStrategy(t, vm))
	env.Update(t, guest, func() {
		guest.Finalizers = slices.DeleteFunc(guest.Finalizers, func(f string) bool { return f == ending })
	})
	awaitNewInstance(t, vm, guest.UID, 1)
	awaitRunning(t, vm)
	assert.Equal(t, kubevirtv1.RunStrategyRerunOnFailure, readRunStrategy(t, vm))
}

// TestIgnoreOnDeployCreatesNoVM keeps a machine from being made, and one that is there from
// being touched.
func TestIgnoreOnDeployCreatesNoVM(t *testing.T) {
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	vm.Spec.IgnoreOnDeploy = true
	env.Create(t, vm)
	ignored := awaitReason(t, vm, v1alpha1.ReasonIgnoredOnDeploy)
	assert.Equal(t, v1alpha1.MachineReady, ignored.Status.Phase)
	assert.Nil(t, ignored.Status.Pinned)
	assert.Empty(t, listLeftovers(t, vm.Namespace))

	env.Update(t, vm, func() { vm.Spec.IgnoreOnDeploy = false })
	awaitRunning(t, vm)
	before, guest := requireObject(t, kubeVirtVMOf(vm)), requireObject(t, kubeVirtVMIOf(vm))
	env.Update(t, vm, func() { vm.Spec.IgnoreOnDeploy = true; vm.Spec.RunStrategy = "Halted" })
	awaitRunning(t, vm)
	their := kubeVirtVMOf(vm)
	env.Update(t, their, func() { their.Spec.Template.Spec.Domain.CPU.Cores = 5 })
	setCores(t, vm, "2")
	awaitRunning(t, vm)
	after := requireObject(t, kubeVirtVMOf(vm))
	assert.Equal(t, before.UID, after.UID)
	assert.EqualValues(t, 5, after.Spec.Template.Spec.Domain.CPU.Cores, "drift is not put back")
	assert.Equal(t, kubevirtv1.RunStrategyAlways, *after.Spec.RunStrategy)
	require.Equal(t, guest.UID, requireObject(t, kubeVirtVMIOf(vm)).UID)

	disk := requireObject(t, rootDiskOf(vm))
	deleteAndAwaitGone(t, kubeVirtVMOf(vm))
	awaitReason(t, vm, v1alpha1.ReasonIgnoredOnDeploy)
	assert.Equal(t, disk.UID, requireObject(t, rootDiskOf(vm)).UID, "a disk that a guest has written to is kept")
	env.Update(t, vm, func() { vm.Spec.IgnoreOnDeploy = false; vm.Spec.RunStrategy = "" })
	awaitRunning(t, vm)
	assert.EqualValues(t, 2, readCores(t, vm))
	assert.Equal(t, disk.UID, requireObject(t, rootDiskOf(vm)).UID)
}
