//go:build linux

package workspaces

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	instancetypev1beta1 "kubevirt.io/api/instancetype/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestProposalExample(t *testing.T) {
	env.CreateStorageClasses(t, "gp3", "ebs-snapshot")
	env.Create(t,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "vmdi-farm"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "vmdi-farm", Name: "foo-bar"}, StringData: map[string]string{"accessKeyId": "a", "secretKey": "s"}},
	)
	env.AllowSecrets(t, "vmdi-farm")
	ns := env.CreateNamespace(t)
	object := &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal([]byte(apitest.ProposedMachine), &object.Object))
	object.SetNamespace(ns)
	require.NoError(t, env.Client().Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object.DeepCopy()), client.FieldOwner("author")))
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "demo-workspace-1"}}

	ignored := env.AwaitMachine(t, vm, testenv.IsMachineReady)
	assert.Equal(t, v1alpha1.ReasonIgnoredOnDeploy, ignored.Status.Reason)
	assert.Equal(t, v1alpha1.PhaseSucceeded, ignored.Status.Image.Phase, "the image is made ready")

	env.Update(t, ignored, func() { ignored.Spec.IgnoreOnDeploy = false })
	lacking := env.AwaitMachine(t, vm, testenv.MachineHasReason(v1alpha1.ReasonNetworkMissing))
	assert.Contains(t, lacking.Status.Message, "NetworkAttachmentDefinition "+ns+"/control-net does not exist")
	env.CreateNetworks(t, ns, "control-net", "bridge-inet", "bridge-edge")
	ready := env.AwaitMachine(t, vm, testenv.IsMachineReady)
	assert.Equal(t, v1alpha1.ReasonRunning, ready.Status.Reason)
	adjusted, message := testenv.IsConditionTrue(ready, v1alpha1.ConditionSpecAdjusted)
	assert.True(t, adjusted)
	assert.Contains(t, message, "24Gi")
	assert.Contains(t, message, "demo-user")
	assert.Equal(t, "24Gi", ready.Status.RootDisk.Size.String())
	warned, message := testenv.IsConditionTrue(ready, v1alpha1.ConditionPlainTextPassword)
	assert.True(t, warned, message)
}

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

// awaitNewInstance waits until an instance other than one runs with a number of cores.
func awaitNewInstance(t *testing.T, vm *v1alpha1.VirtualMachine, not types.UID, n uint32) {
	t.Helper()
	awaitObject(t, kubeVirtVMIOf(vm), "another one with the new spec", func(o *kubevirtv1.VirtualMachineInstance) bool {
		return o.UID != not && o.Status.Phase == kubevirtv1.Running && o.Spec.Domain.CPU.Cores == n
	})
}

func TestUnsetRunStrategyIsLeftAlone(t *testing.T) {
	t.Parallel()
	vm := createAndAwaitRunning(t, testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t)))
	assert.Equal(t, kubevirtv1.RunStrategyAlways, readRunStrategy(t, vm))
	stopVM(t, vm)
	env.AwaitMachine(t, vm, testenv.IsMachineReady)

	setCores(t, vm, "2")
	awaitObject(t, kubeVirtVMOf(vm), "as the spec says now", func(o *kubevirtv1.VirtualMachine) bool { return o.Spec.Template.Spec.Domain.CPU.Cores == 2 })
	awaitReason(t, vm, v1alpha1.ReasonStopped)
	assert.Equal(t, kubevirtv1.RunStrategyHalted, readRunStrategy(t, vm))
	setRunStrategy(t, vm, kubevirtv1.RunStrategyAlways)
	awaitNewInstance(t, vm, "", 2)
	awaitRunning(t, vm)
}

// TestSpecRunStrategyIsEnforced wants the run strategy of the spec to be restored, and applied
// at once although other changes wait for a restart.
func TestSpecRunStrategyIsEnforced(t *testing.T) {
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	vm.Spec.RunStrategy = "Always"
	createAndAwaitRunning(t, vm)
	setRunStrategy(t, vm, kubevirtv1.RunStrategyManual)
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

func TestChangedSpecWaitsForARestart(t *testing.T) {
	t.Parallel()
	vm := createAndAwaitRunning(t, testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t)))
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

	// Guests take some time to end; those of the simulated node do not.
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

// TestRerunOnFailureWaitsForFormerInstance: while the former instance exists, virt-controller
// starts no other (KubeVirt 1.8.0, pkg/virt-controller/watch/vm/vm.go:1069).
func TestRerunOnFailureWaitsForFormerInstance(t *testing.T) {
	testenv.RunInTurn(t, 26)
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

// TestIgnoreOnDeployCreatesNoVM wants no KubeVirt VM to be created, and an existing one to be
// left alone.
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

// TestPasswordsAreOnlyInTheSecret wants no password in any other object.
func TestPasswordsAreOnlyInTheSecret(t *testing.T) {
	t.Parallel()
	ns := env.CreateNamespace(t)
	vm := testenv.NewMachine(ns, "vm", sharedImage(t))
	vm.Spec.Users = []v1alpha1.User{
		{Name: "plain", PlainTextPasswd: "swordfish-plain"},
		{Name: "referred", PasswordSecretRef: &v1alpha1.SecretKey{Name: "passwords", Key: "referred"}},
		{Name: "keys", SSHAuthorizedKeys: []string{"ssh-ed25519 AAAAC3Nza demo@example"}},
	}
	env.Create(t, vm)
	forbidden := awaitReason(t, vm, v1alpha1.ReasonSecretForbidden)
	assert.Equal(t, v1alpha1.MachineProvisioning, forbidden.Status.Phase, "the right may come yet")
	assert.Contains(t, forbidden.Status.Message, "kubectl create rolebinding secrets-for-ot-agent --namespace "+ns+" --clusterrole ot-agent-secrets --serviceaccount ot-agent:ot-agent")
	env.AllowSecrets(t, ns)
	lacking := awaitReason(t, vm, v1alpha1.ReasonSecretMissing)
	assert.Contains(t, lacking.Status.Message, "Secret "+ns+"/passwords does not exist")
	env.Create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "passwords"}, StringData: map[string]string{"referred": "swordfish-referred"}})
	got := awaitRunning(t, vm)
	assert.Contains(t, awaitCondition(t, vm, v1alpha1.ConditionPlainTextPassword, metav1.ConditionTrue), "the password of plain: use passwordSecretRef")
	env.AwaitEvent(t, vm, v1alpha1.ConditionPlainTextPassword, "plain")

	userData := string(requireObject(t, cloudInitSecretOf(vm)).Data["userdata"])
	for _, wanted := range []string{"swordfish-plain", "swordfish-referred", "ssh-ed25519 AAAAC3Nza demo@example"} {
		assert.Contains(t, userData, wanted)
	}
	status, err := json.Marshal(got.Status)
	require.NoError(t, err)
	assert.NotContains(t, string(status), "swordfish")
	for _, kind := range []string{"VirtualMachine", "VirtualMachineInstance"} {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(kubevirtv1.GroupVersion.WithKind(kind))
		require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(vm), o))
		text, err := o.MarshalJSON()
		require.NoError(t, err)
		assert.NotContains(t, string(text), "swordfish")
	}
	assert.Equal(t, vm.Spec, got.Spec, "the spec is the author's")
}

func TestLongUserDataUsesASecret(t *testing.T) {
	testenv.RunInTurn(t, 27)
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	vm.Spec.CloudInit = &v1alpha1.CloudInit{UserData: "#!/bin/sh\n" + strings.Repeat("# user data\n", 100<<10/15)}
	createAndAwaitRunning(t, vm)
	assert.Greater(t, len(requireObject(t, cloudInitSecretOf(vm)).Data["userdata"]), 100<<10)
}

func newOverlay(text string) *runtime.RawExtension { return &runtime.RawExtension{Raw: []byte(text)} }

func TestOverlayIsMerged(t *testing.T) {
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	vm.Spec.Overlay = newOverlay(`{"runStrategy": "Halted"}`)
	env.Create(t, vm)
	refused := awaitReason(t, vm, v1alpha1.ReasonSpecInvalid)
	assert.Equal(t, v1alpha1.MachineFailed, refused.Status.Phase)
	assert.Contains(t, refused.Status.Message, "overlay must not set runStrategy: set spec.runStrategy instead")

	env.Update(t, vm, func() {
		vm.Spec.Overlay = newOverlay(`{"template": {"spec": {
			"terminationGracePeriodSeconds": 7,
			"domain": {"devices": {"disks": [{"name": "root", "serial": "abc"}, {"name": "scratch", "disk": {"bus": "virtio"}}]}},
			"volumes": [{"name": "scratch", "emptyDisk": {"capacity": "1024Mi"}}]}}}`)
	})
	awaitRunning(t, vm)
	spec := requireObject(t, kubeVirtVMIOf(vm)).Spec
	assert.EqualValues(t, 7, *spec.TerminationGracePeriodSeconds)
	require.Len(t, spec.Domain.Devices.Disks, 3)
	assert.Equal(t, "abc", spec.Domain.Devices.Disks[0].Serial)
	assert.EqualValues(t, 1, *spec.Domain.Devices.Disks[0].BootOrder, "it is merged, not replaced")
	assert.Len(t, spec.Volumes, 3)

	before := requireObject(t, kubeVirtVMOf(vm))
	env.Update(t, vm, func() { vm.Annotations = map[string]string{"looked": "at again"} })
	env.Update(t, vm, func() { vm.Spec.Overlay = newOverlay(`{"template": {"spec": {"domain": {"cpus": 3}}}}`) })
	wrong := awaitReason(t, vm, v1alpha1.ReasonSpecInvalid)
	assert.Contains(t, wrong.Status.Message, `unknown field "spec.template.spec.domain.cpus"`)
	assert.Equal(t, before.Generation, requireObject(t, kubeVirtVMOf(vm)).Generation, "the machine runs on as it was")
	env.Update(t, vm, func() { vm.Spec.Overlay = nil })
	awaitRunning(t, vm)
}

func TestInstancetypeAndPreference(t *testing.T) {
	t.Parallel()
	ns := env.CreateNamespace(t)
	env.Create(t,
		&instancetypev1beta1.VirtualMachineInstancetype{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "three"}, Spec: instancetypev1beta1.VirtualMachineInstancetypeSpec{
			CPU: instancetypev1beta1.CPUInstancetype{Guest: 3}, Memory: instancetypev1beta1.MemoryInstancetype{Guest: resource.MustParse("96Mi")},
		}},
		&instancetypev1beta1.VirtualMachinePreference{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "sata"}, Spec: instancetypev1beta1.VirtualMachinePreferenceSpec{
			Devices: &instancetypev1beta1.DevicePreferences{PreferredDiskBus: kubevirtv1.DiskBusSATA},
		}},
	)
	vm := testenv.NewMachine(ns, "vm", sharedImage(t))
	vm.Spec.Resources = nil
	vm.Spec.Instancetype = &v1alpha1.Matcher{Kind: "VirtualMachineInstancetype", Name: "three"}
	vm.Spec.Preference = &v1alpha1.Matcher{Kind: "VirtualMachinePreference", Name: "sata"}
	createAndAwaitRunning(t, vm)
	domain := requireObject(t, kubeVirtVMIOf(vm)).Spec.Domain
	assert.EqualValues(t, 3, domain.CPU.Sockets*domain.CPU.Cores*domain.CPU.Threads)
	assert.Equal(t, "96Mi", domain.Memory.Guest.String())
	assert.Equal(t, kubevirtv1.DiskBusSATA, domain.Devices.Disks[0].Disk.Bus)

	before := requireObject(t, kubeVirtVMOf(vm))
	env.Update(t, vm, func() { vm.Spec.RunStrategy = "Always" })
	awaitRunning(t, vm)
	after := requireObject(t, kubeVirtVMOf(vm))
	assert.Equal(t, before.Spec.Instancetype, after.Spec.Instancetype, "what KubeVirt notes in it is KubeVirt's")
	assert.Equal(t, before.Generation, after.Generation)
}
