//go:build linux

package workspaces

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	instancetypev1beta1 "kubevirt.io/api/instancetype/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// awaitStalled waits until a person has to act on a VM, for a reason.
func awaitStalled(t *testing.T, vm *v1alpha1.VirtualMachine, reason v1alpha1.Reason) string {
	t.Helper()
	got := env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Phase == v1alpha1.MachineFailed && vm.Status.Reason == reason && meta.IsStatusConditionTrue(vm.Status.Conditions, v1alpha1.ConditionStalled)
	})
	recordReports(t, vm)
	return got.Status.Message
}

// recordVariable names a directory for what KubeVirt and CDI report of VMs that are held up, as
// the tests of agent/diagnosis have it.
const recordVariable = "OT_FLEET_RECORD"

func recordReports(t *testing.T, vm *v1alpha1.VirtualMachine) {
	t.Helper()
	dir := os.Getenv(recordVariable)
	if dir == "" {
		return
	}
	for _, o := range []client.Object{kubeVirtVMOf(vm), rootDiskOf(vm)} {
		if env.Client().Get(t.Context(), client.ObjectKeyFromObject(o), o) != nil {
			continue
		}
		o.SetManagedFields(nil)
		text, err := json.MarshalIndent(o, "", "  ")
		require.NoError(t, err)
		name := strings.NewReplacer("/", "-", "_", "-").Replace(strings.TrimPrefix(t.Name(), "Test"))
		kind := strings.ToLower(reflect.TypeOf(o).Elem().Name())
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+"-"+kind+".json"), append(text, '\n'), 0o600))
	}
}

// TestMissingInstancetypeAndPreference wants KubeVirt's own sentence, and the VM to run once
// both exist.
func TestMissingInstancetypeAndPreference(t *testing.T) {
	t.Parallel()
	ns := env.CreateNamespace(t)
	vm := testenv.NewMachine(ns, "vm", sharedImage(t))
	vm.Spec.Resources = nil
	vm.Spec.Instancetype = &v1alpha1.Matcher{Kind: "VirtualMachineInstancetype", Name: "nope"}
	vm.Spec.Preference = &v1alpha1.Matcher{Kind: "VirtualMachinePreference", Name: "neither"}
	env.Create(t, vm)
	said := awaitStalled(t, vm, v1alpha1.ReasonInstancetypeMissing)
	assert.Contains(t, said, "KubeVirt reports FailedFindInstancetype")
	assert.Contains(t, said, `"nope" not found`)

	env.Create(t, &instancetypev1beta1.VirtualMachineInstancetype{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "nope"}, Spec: instancetypev1beta1.VirtualMachineInstancetypeSpec{
		CPU: instancetypev1beta1.CPUInstancetype{Guest: 1}, Memory: instancetypev1beta1.MemoryInstancetype{Guest: resource.MustParse("96Mi")},
	}})
	retryByKubeVirt(t, vm)
	said = awaitStalled(t, vm, v1alpha1.ReasonPreferenceMissing)
	assert.Contains(t, said, "KubeVirt reports FailedFindPreference")
	assert.Contains(t, said, `"neither" not found`)
	env.Create(t, &instancetypev1beta1.VirtualMachinePreference{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "neither"}})
	retryByKubeVirt(t, vm)
	awaitRunning(t, vm)
}

// retryByKubeVirt has KubeVirt look at a machine now: the waits between its own retries double.
func retryByKubeVirt(t *testing.T, vm *v1alpha1.VirtualMachine) {
	t.Helper()
	of := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: vm.Name}}
	env.Update(t, of, func() { metav1.SetMetaDataAnnotation(&of.ObjectMeta, "example.com/retried-at", time.Now().String()) })
}

// createQuota creates a quota that is in force.
func createQuota(t *testing.T, ns string, hard corev1.ResourceList) *corev1.ResourceQuota {
	t.Helper()
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "quota"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	env.Create(t, quota)
	quota.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{}}
	for name := range hard {
		quota.Status.Used[name] = resource.MustParse("0")
	}
	require.NoError(t, env.Client().Status().Update(t.Context(), quota), "no controller of quotas runs here")
	return quota
}

// requireHeldUpBy wants a VM to be stalled, with a message that has some parts, and to run once the
// object that holds it up is deleted.
func requireHeldUpBy(t *testing.T, vm *v1alpha1.VirtualMachine, obstacle client.Object, reason v1alpha1.Reason, want ...string) {
	t.Helper()
	said := awaitStalled(t, vm, reason)
	for _, part := range want {
		assert.Contains(t, said, part)
	}
	deleteObject(t, obstacle)
	awaitRunning(t, vm)
}

// TestRefusedInstances wants the sentence of the quota or LimitRange that refuses an instance or
// its virt-launcher, and the VM to run without it.
func TestRefusedInstances(t *testing.T) {
	testenv.RunInTurn(t, 17)
	t.Parallel()
	for name, refuse := range map[string]struct {
		by     func(t *testing.T, ns string) client.Object
		reason v1alpha1.Reason
		want   []string
	}{
		"quota of instances": {func(t *testing.T, ns string) client.Object {
			return createQuota(t, ns, corev1.ResourceList{"count/virtualmachineinstances.kubevirt.io": resource.MustParse("0")})
		}, v1alpha1.ReasonQuotaExceeded, []string{"KubeVirt reports FailedCreate: ", "exceeded quota: quota, requested: count/virtualmachineinstances.kubevirt.io=1", "limited: count/virtualmachineinstances.kubevirt.io=0"}},
		"quota of Pods": {func(t *testing.T, ns string) client.Object {
			return createQuota(t, ns, corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")})
		}, v1alpha1.ReasonQuotaExceeded, []string{"KubeVirt reports FailedCreate: failed to create virtual machine pod: ", "exceeded quota: quota, requested: pods=1"}},
		"LimitRange": {func(t *testing.T, ns string) client.Object {
			return env.CreateLimitRange(t, ns, corev1.LimitTypePod, corev1.ResourceMemory, "1Mi")
		}, v1alpha1.ReasonMachineError, []string{"KubeVirt reports FailedCreate: failed to create virtual machine pod: ", "maximum memory usage per Pod is 1Mi"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := env.CreateNamespace(t)
			vm := testenv.NewMachine(ns, "vm", sharedImage(t))
			vm.Spec.RunStrategy = "Halted" // the root disk is cloned first
			env.Create(t, vm)
			awaitReason(t, vm, v1alpha1.ReasonStopped)
			obstacle := refuse.by(t, ns)
			env.Update(t, vm, func() { vm.Spec.RunStrategy = "Always" })
			requireHeldUpBy(t, vm, obstacle, refuse.reason, refuse.want...)
		})
	}
}

// TestRootDiskBeyondQuota wants the sentence of the quota that refuses the claim, and a person
// to act.
func TestRootDiskBeyondQuota(t *testing.T) {
	testenv.RunInTurn(t, 14)
	t.Parallel()
	ns := env.CreateNamespace(t)
	quota := createQuota(t, ns, corev1.ResourceList{corev1.ResourceRequestsStorage: resource.MustParse("1Mi")})
	vm := testenv.NewMachine(ns, "vm", sharedImage(t))
	env.Create(t, vm)
	requireHeldUpBy(t, vm, quota, v1alpha1.ReasonQuotaExceeded, "CDI reports ErrExceededQuota: ", "exceeded quota: quota, requested: requests.storage=")
}

// TestRootDiskBeyondLimitRange wants the LimitRange that refuses the claim to be named, which CDI
// does nowhere but in its log, and a person to act.
func TestRootDiskBeyondLimitRange(t *testing.T) {
	testenv.RunInTurn(t, 15)
	t.Parallel()
	ns := env.CreateNamespace(t)
	limits := env.CreateLimitRange(t, ns, corev1.LimitTypePersistentVolumeClaim, corev1.ResourceStorage, "1Mi")
	vm := testenv.NewMachine(ns, "vm", sharedImage(t))
	env.Create(t, vm)
	requireHeldUpBy(t, vm, limits, v1alpha1.ReasonRootDiskFailed, "LimitRange "+ns+"/limits allows 1Mi at most")
}

// TestRootDiskWithoutAccessModes takes the access modes from a StorageProfile once an image is
// imported: CDI makes no claim for a clone.
func TestRootDiskWithoutAccessModes(t *testing.T) {
	testenv.RunInTurn(t, 16)
	t.Parallel()
	ns := env.CreateNamespace(t)
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "modes-" + ns}, Provisioner: simulator.ClassCSI + ".pelotech.ot"}
	env.Create(t, class)
	t.Cleanup(func() { assert.NoError(t, env.Client().Delete(context.Background(), class)) })
	env.SetClaimProperties(t, class.Name)
	img := env.NewImage(ns, "image", "/ok/100ms/a")
	img.Spec.StorageClass = class.Name
	env.ImportImage(t, img)
	env.ClearClaimProperties(t, class.Name)
	vm := testenv.NewMachine(ns, "vm", img)
	env.Create(t, vm)
	assert.Contains(t, awaitStalled(t, vm, v1alpha1.ReasonRootDiskFailed), "StorageProfile")
	env.SetClaimProperties(t, class.Name)
	awaitRunning(t, vm)
}

// TestUnschedulableInstance wants the sentence of the scheduler.
func TestUnschedulableInstance(t *testing.T) {
	testenv.RunInTurn(t, 2)
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	vm.Spec.Overlay = newOverlay(`{"template": {"spec": {"nodeSelector": {"zone": "nowhere"}}}}`)
	env.Create(t, vm)
	// KubeVirt tries to schedule before the disk is complete, and says that first.
	said := env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.PrintableStatus == string(kubevirtv1.VirtualMachineStatusUnschedulable) && strings.Contains(vm.Status.Message, "nodes are available")
	}).Status.Message
	assert.Contains(t, said, "KubeVirt")
	// While KubeVirt's condition still has the sentence about a claim that exists by now, the Pod's counts.
	assert.Regexp(t, "^KubeVirt reports ErrorUnschedulable: (Unschedulable|Kubernetes reports Unschedulable of PodScheduled): 0/1 nodes are available: ", awaitStalled(t, vm, v1alpha1.ReasonMachineError))
}

// TestAddressesOfTwoVMs wants the younger of two VMs with one address to wait for another one.
func TestAddressesOfTwoVMs(t *testing.T) {
	t.Parallel()
	ns := env.CreateNamespace(t)
	env.CreateNetworks(t, ns, "a")
	newVM := func(name string, nic v1alpha1.Interface) *v1alpha1.VirtualMachine {
		vm := testenv.NewMachine(ns, name, sharedImage(t))
		nic.Network = "a"
		vm.Spec.Interfaces = []v1alpha1.Interface{nic}
		return vm
	}
	first := newVM("a-first", v1alpha1.Interface{MACAddress: "02:00:00:00:00:AA", IPAddress: "10.10.0.5/24"})
	createAndAwaitRunning(t, first)
	mac, ip := newVM("b-mac", v1alpha1.Interface{MACAddress: "02:00:00:00:00:aa"}), newVM("b-ip", v1alpha1.Interface{IPAddress: "10.10.0.5/16"})
	env.Create(t, mac, ip)
	assert.Contains(t, awaitStalled(t, mac, v1alpha1.ReasonSpecInvalid), "has macAddress 02:00:00:00:00:aa, which interfaces[0] of VirtualMachine a-first has, too: change one")
	assert.Contains(t, awaitStalled(t, ip, v1alpha1.ReasonSpecInvalid), "has ipAddress 10.10.0.5, which interfaces[0] of VirtualMachine a-first has, too: change one")
	awaitRunning(t, first)

	env.Update(t, ip, func() { ip.Spec.Interfaces[0].IPAddress = "10.10.0.6/16" })
	awaitRunning(t, ip)
	deleteObject(t, first)
	awaitRunning(t, mac)
}

// TestPodNetworkAddressStays wants a VM without interfaces to have one MAC address for life.
func TestPodNetworkAddressStays(t *testing.T) {
	testenv.RunInTurn(t, 18)
	t.Parallel()
	ns := env.CreateNamespace(t)
	vm := testenv.NewMachine(ns, "vm", sharedImage(t))
	addressOf := func(vm *v1alpha1.VirtualMachine) string {
		return requireObject(t, kubeVirtVMIOf(vm)).Spec.Domain.Devices.Interfaces[0].MacAddress
	}
	createAndAwaitRunning(t, vm)
	first := addressOf(vm)
	assert.NotEmpty(t, first)
	stopVM(t, vm)
	setRunStrategy(t, vm, kubevirtv1.RunStrategyAlways)
	awaitRunning(t, vm)
	assert.Equal(t, first, addressOf(vm))
	deleteAndAwaitNothingLeft(t, vm)
	again := testenv.NewMachine(ns, "vm", sharedImage(t))
	createAndAwaitRunning(t, again)
	assert.Equal(t, first, addressOf(again), "also when it is created again")
}

// TestOverlayRemoves applies an overlay as kubectl does, which drops nulls.
func TestOverlayRemoves(t *testing.T) {
	testenv.RunInTurn(t, 19)
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	vm.Spec.Overlay = newOverlay(`{"template": {"spec": {
		"domain": {"devices": {"disks": [{"name": "cloudinit", "$patch": "delete"}]}, "cpu": {"cores": {"$patch": "delete"}, "sockets": 2}},
		"volumes": [{"name": "cloudinit", "$patch": "delete"}]}}}`)
	createAndAwaitRunning(t, vm)
	spec := requireObject(t, kubeVirtVMOf(vm)).Spec.Template.Spec
	require.Len(t, spec.Volumes, 1)
	assert.Equal(t, "root", spec.Volumes[0].Name)
	require.Len(t, spec.Domain.Devices.Disks, 1)
	assert.EqualValues(t, 2, spec.Domain.CPU.Sockets)
	assert.Zero(t, spec.Domain.CPU.Cores)

	generation := requireObject(t, kubeVirtVMOf(vm)).Generation
	env.Update(t, vm, func() { vm.Annotations = map[string]string{"looked": "at again"} })
	env.Update(t, vm, func() {
		vm.Spec.Overlay = newOverlay(`{"template": {"spec": {"domain": {"cpu": {"$patch": "merge"}}}}}`)
	})
	assert.Contains(t, awaitStalled(t, vm, v1alpha1.ReasonSpecInvalid), "the only directive is $patch: delete")
	assert.Equal(t, generation, requireObject(t, kubeVirtVMOf(vm)).Generation, "nothing is applied again and again")
}

// TestOverlayThatKubeVirtRefuses wants KubeVirt's own sentence, and the VM to run once the overlay
// is corrected.
func TestOverlayThatKubeVirtRefuses(t *testing.T) {
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	vm.Spec.Overlay = newOverlay(`{"template": {"spec": {"domain": {"machine": {"type": "toaster"}}}}}`)
	env.Create(t, vm)
	assert.Contains(t, awaitStalled(t, vm, v1alpha1.ReasonMachineRefused), "machine.type is not supported: toaster")
	env.Update(t, vm, func() { vm.Spec.Overlay = nil })
	awaitRunning(t, vm)
}
