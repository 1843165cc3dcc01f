//go:build linux

package workspaces

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func rootClaimOf(vm *v1alpha1.VirtualMachine) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: rootDiskOf(vm).Name}}
}

func isOwnedBy(o client.Object, vm *v1alpha1.VirtualMachine) bool {
	for _, owner := range o.GetOwnerReferences() {
		if owner.UID == vm.UID {
			return true
		}
	}
	return false
}

// TestStrippedOwnersAreSetAgain removes the owners of a running VM's objects: the agent sets them
// again, and nothing remains when the VM is deleted.
func TestStrippedOwnersAreSetAgain(t *testing.T) {
	t.Parallel()
	ns := env.CreateNamespace(t)
	vm := createAndAwaitRunning(t, testenv.NewMachine(ns, "vm", sharedImage(t)))
	guest := requireObject(t, kubeVirtVMIOf(vm))
	setCores(t, vm, "2") // a change that waits for a restart
	awaitCondition(t, vm, v1alpha1.ConditionRestartRequired, metav1.ConditionTrue)
	for _, o := range []client.Object{kubeVirtVMOf(vm), rootDiskOf(vm)} {
		env.Update(t, requireObject(t, o), func() { o.SetOwnerReferences(nil) })
		awaitObject(t, o, "owned again", func(o client.Object) bool { return isOwnedBy(o, vm) })
	}
	assert.Equal(t, guest.UID, requireObject(t, kubeVirtVMIOf(vm)).UID)
	deleteAndAwaitNothingLeft(t, vm)
}

// TestOrphanedVMIsTakenOver deletes a running VM and keeps its objects, creates it again, and takes
// them over by the commands in the messages. Nothing remains when the new VM is deleted.
func TestOrphanedVMIsTakenOver(t *testing.T) {
	t.Parallel()
	ns := env.CreateNamespace(t)
	old := testenv.NewMachine(ns, "vm", sharedImage(t))
	old.Spec.Users = []v1alpha1.User{{Name: "demo", PlainTextPasswd: "demo-pwd"}}
	old = createAndAwaitRunning(t, old)
	disk, guest := requireObject(t, rootDiskOf(old)), requireObject(t, kubeVirtVMIOf(old))
	deleteObject(t, old, client.PropagationPolicy(metav1.DeletePropagationOrphan))
	env.AwaitGone(t, old)

	vm := testenv.NewMachine(ns, "vm", sharedImage(t))
	vm.Spec.Users = old.Spec.Users
	env.Create(t, vm)
	said := awaitStalled(t, vm, v1alpha1.ReasonNameTaken)
	assert.Contains(t, said, "label datavolume,persistentvolumeclaim vm-root pelotech.ot/machine-uid="+string(vm.UID)+" --overwrite")
	label := func(objects ...client.Object) {
		for _, o := range objects {
			env.Update(t, requireObject(t, o), func() { o.GetLabels()[v1alpha1.LabelMachineUID] = string(vm.UID) })
		}
	}
	label(rootDiskOf(vm), rootClaimOf(vm))
	require.True(t, testenv.AwaitCondition(t, func() bool {
		require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(vm), vm))
		return vm.Status.RootDisk != nil && vm.Status.RootDisk.Ready && vm.Status.Reason == v1alpha1.ReasonNameTaken
	}), "%s", vm.Status.Message)
	assert.Contains(t, vm.Status.Message, "label virtualmachines.kubevirt.io vm pelotech.ot/machine-uid="+string(vm.UID)+" --overwrite")
	label(kubeVirtVMOf(vm))
	vm = awaitRunning(t, vm)
	for _, o := range []client.Object{kubeVirtVMOf(vm), rootDiskOf(vm), cloudInitSecretOf(vm)} {
		awaitObject(t, o, "owned by the new machine", func(o client.Object) bool { return isOwnedBy(o, vm) })
	}
	assert.Equal(t, disk.UID, requireObject(t, rootDiskOf(vm)).UID, "the guest's data stays")
	assert.Equal(t, guest.UID, requireObject(t, kubeVirtVMIOf(vm)).UID, "it runs on")
	require.NotNil(t, vm.Status.Pinned, "the image is referenced")

	deleteAndAwaitNothingLeft(t, vm)
}

// TestOrphanedDiskHoldsItsImage deletes a VM and keeps its objects: the image stays until the disk
// is deleted or taken over, and a VM that takes it over for another image holds it, too.
func TestOrphanedDiskHoldsItsImage(t *testing.T) {
	testenv.RunInTurn(t, 12)
	t.Parallel()
	ns, farm := env.CreateNamespace(t), env.CreateNamespace(t)
	img := env.ImportImage(t, env.NewSnapshottedImage(farm, "image", "/ok/100ms/a"))
	old := createAndAwaitRunning(t, testenv.NewMachine(ns, "vm", img))
	deleteObject(t, old, client.PropagationPolicy(metav1.DeletePropagationOrphan))
	env.AwaitGone(t, old)
	orphaned := func(img *v1alpha1.VMDiskImage) bool {
		return len(img.Status.References.Holders) == 1 && img.Status.References.Holders[0] == ns+"/vm-root (orphaned disk)"
	}
	env.AwaitImage(t, img, orphaned)
	deleteObject(t, img)
	leaving := env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseTerminating))
	assert.True(t, orphaned(leaving))
	assert.Contains(t, leaving.Status.Message, "KubeVirt VirtualMachine "+ns+"/vm still uses it, so keep it")

	vm := testenv.NewMachine(ns, "vm", sharedImage(t))
	env.Create(t, vm)
	awaitStalled(t, vm, v1alpha1.ReasonNameTaken)
	for _, o := range []client.Object{rootDiskOf(vm), rootClaimOf(vm), kubeVirtVMOf(vm)} {
		env.Update(t, requireObject(t, o), func() { o.GetLabels()[v1alpha1.LabelMachineUID] = string(vm.UID) })
	}
	awaitRunning(t, vm)
	awaitHolders(t, img, vm)
	deleteObject(t, vm)
	env.AwaitGone(t, img)
}

// TestOrphanedClaimHoldsItsImage deletes a halted VM, its KubeVirt VM and its disk's DataVolume: the
// claim that CDI has made of that says what it was cloned from, and holds the image alone.
func TestOrphanedClaimHoldsItsImage(t *testing.T) {
	testenv.RunInTurn(t, 13)
	t.Parallel()
	ns, farm := env.CreateNamespace(t), env.CreateNamespace(t)
	img := env.ImportImage(t, env.NewSnapshottedImage(farm, "image", "/ok/100ms/a"))
	vm := testenv.NewMachine(ns, "vm", img)
	vm.Spec.RunStrategy = "Halted"
	env.Create(t, vm)
	awaitReason(t, vm, v1alpha1.ReasonStopped)
	deleteObject(t, vm, client.PropagationPolicy(metav1.DeletePropagationOrphan))
	env.AwaitGone(t, vm)
	deleteObject(t, kubeVirtVMOf(vm), client.PropagationPolicy(metav1.DeletePropagationOrphan))
	env.AwaitGone(t, kubeVirtVMOf(vm))
	disk, claim := requireObject(t, rootDiskOf(vm)), requireObject(t, rootClaimOf(vm))
	require.NotEmpty(t, cloneSourceOf(disk))
	assert.Equal(t, cloneSourceOf(disk), claim.Annotations[v1alpha1.AnnotationClonedFrom])

	deleteObject(t, disk, client.PropagationPolicy(metav1.DeletePropagationOrphan))
	env.AwaitGone(t, disk)
	deleteObject(t, img)
	leaving := env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseTerminating))
	assert.Equal(t, []string{ns + "/vm-root (orphaned disk)"}, leaving.Status.References.Holders)
	deleteObject(t, claim)
	env.AwaitGone(t, img)
}
