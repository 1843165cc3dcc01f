//go:build linux

package workspaces

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestLongAndUnusualNames(t *testing.T) {
	t.Parallel()
	ns := env.CreateNamespace(t)
	var machines []*v1alpha1.VirtualMachine
	for _, name := range []string{
		"a", "9", "with.a.dot",
		strings.Repeat("long-", 12) + "end", // 63
		strings.Repeat("dots.", 12) + "end",
	} {
		vm := testenv.NewMachine(ns, name, sharedImage(t))
		vm.Spec.RunStrategy = "Halted"
		env.Create(t, vm)
		machines = append(machines, vm)
	}
	disks := map[string]bool{}
	for _, vm := range machines {
		got := awaitReason(t, vm, v1alpha1.ReasonStopped)
		disks[got.Status.RootDisk.DataVolume] = true
		if strings.Contains(vm.Name, ".") {
			assert.Contains(t, awaitCondition(t, vm, v1alpha1.ConditionSpecAdjusted, metav1.ConditionTrue), "is not a host name of one label")
		}
		env.Update(t, vm, func() { vm.Spec.RunStrategy = "Always" })
	}
	assert.Len(t, disks, len(machines))
	for _, vm := range machines {
		awaitRunning(t, vm)
	}
	require.ErrorContains(t, env.Client().Create(t.Context(), testenv.NewMachine(ns, strings.Repeat("x", 64), sharedImage(t))), "at most 63 characters")
}

// TestTakenNamesAreLeftAlone by what was not made for the machine: it is left as it is, and
// the machine goes on when it is gone.
func TestTakenNamesAreLeftAlone(t *testing.T) {
	t.Parallel()
	ns := env.CreateNamespace(t)
	byMachine, byDisk, bySecret := testenv.NewMachine(ns, "by-machine", sharedImage(t)), testenv.NewMachine(ns, "by-disk", sharedImage(t)), testenv.NewMachine(ns, "by-secret", sharedImage(t))
	foreign := kubeVirtVMOf(byMachine)
	foreign.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyHalted)
	foreign.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{}
	foreign.Spec.Template.Spec.Domain.Memory = &kubevirtv1.Memory{Guest: byMachine.Spec.Resources.Memory}
	blank := rootDiskOf(byDisk)
	blank.Spec.Source = &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}}
	blank.Spec.Storage = &cdiv1.StorageSpec{
		StorageClassName: ptr.To("sim-csi"), Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *byMachine.Spec.Resources.Memory}},
	}
	secret := cloudInitSecretOf(bySecret)
	secret.StringData = map[string]string{"userdata": "theirs"}
	env.Create(t, foreign, blank, secret)
	env.Create(t, byMachine, byDisk, bySecret)
	for vm, kind := range map[*v1alpha1.VirtualMachine]string{
		byMachine: "KubeVirt VirtualMachine by-machine", byDisk: "DataVolume by-disk-root", bySecret: "Secret by-secret-cloudinit",
	} {
		got := awaitReason(t, vm, v1alpha1.ReasonNameTaken)
		assert.Equal(t, v1alpha1.MachineFailed, got.Status.Phase)
		assert.Contains(t, got.Status.Message, kind+" exists and was not created for this machine")
	}
	spec := foreign.Spec.DeepCopy()
	for _, o := range []client.Object{foreign, blank, secret} {
		uid := o.GetUID()
		requireObject(t, o)
		assert.Equal(t, uid, o.GetUID())
		assert.Empty(t, o.GetLabels()[v1alpha1.LabelMachineUID])
		assert.Empty(t, o.GetOwnerReferences())
	}
	assert.Equal(t, "theirs", string(secret.Data["userdata"]))
	assert.Equal(t, spec, &foreign.Spec)
	for _, o := range []client.Object{foreign, blank, secret} {
		deleteObject(t, o)
	}
	for _, vm := range []*v1alpha1.VirtualMachine{byMachine, byDisk, bySecret} {
		awaitRunning(t, vm)
	}
}
