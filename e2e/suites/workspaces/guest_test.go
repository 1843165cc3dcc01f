//go:build linux

package workspaces

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kubevirtv1 "kubevirt.io/api/core/v1"
	instancetypev1beta1 "kubevirt.io/api/instancetype/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestPasswordsAreOnlyInTheSecret that KubeVirt's machine names, whoever is to
// read that.
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
	lacking := awaitReason(t, vm, v1alpha1.ReasonSecretMissing)
	assert.Equal(t, v1alpha1.MachineProvisioning, lacking.Status.Phase, "it may come yet")
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
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	vm.Spec.CloudInit = &v1alpha1.CloudInit{UserData: "#!/bin/sh\n" + strings.Repeat("# what is told\n", 100<<10/15)}
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
