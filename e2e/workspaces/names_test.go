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
	"github.com/pelotech/ot-fleet/e2e/scene"
)

func TestNames(t *testing.T) {
	t.Parallel()
	ns := place.Namespace(t)
	var machines []*v1alpha1.VirtualMachine
	for _, name := range []string{
		"a", "9", "with.a.dot",
		strings.Repeat("long-", 12) + "end", // 63
		strings.Repeat("dots.", 12) + "end",
	} {
		vm := scene.Machine(ns, name, base(t))
		vm.Spec.RunStrategy = "Halted"
		place.Create(t, vm)
		machines = append(machines, vm)
	}
	disks := map[string]bool{}
	for _, vm := range machines {
		got := because(t, vm, v1alpha1.ReasonStopped)
		disks[got.Status.RootDisk.DataVolume] = true
		if strings.Contains(vm.Name, ".") {
			assert.Contains(t, says(t, vm, v1alpha1.ConditionSpecAdjusted, metav1.ConditionTrue), "is no host name of one label")
		}
		place.Change(t, vm, func() { vm.Spec.RunStrategy = "Always" })
	}
	assert.Len(t, disks, len(machines))
	for _, vm := range machines {
		runs(t, vm)
	}
	require.ErrorContains(t, place.Client().Create(t.Context(), scene.Machine(ns, strings.Repeat("x", 64), base(t))), "at most 63 characters")
}

// TestNameTaken by what was not made for the machine: it is left as it is, and
// the machine goes on when it is gone.
func TestNameTaken(t *testing.T) {
	t.Parallel()
	ns := place.Namespace(t)
	byMachine, byDisk, bySecret := scene.Machine(ns, "by-machine", base(t)), scene.Machine(ns, "by-disk", base(t)), scene.Machine(ns, "by-secret", base(t))
	foreign := theirs(byMachine)
	foreign.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyHalted)
	foreign.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{}
	foreign.Spec.Template.Spec.Domain.Memory = &kubevirtv1.Memory{Guest: byMachine.Spec.Resources.Memory}
	blank := rootDisk(byDisk)
	blank.Spec.Source = &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}}
	blank.Spec.Storage = &cdiv1.StorageSpec{
		StorageClassName: ptr.To("sim-csi"), Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *byMachine.Spec.Resources.Memory}},
	}
	secret := told(bySecret)
	secret.StringData = map[string]string{"userdata": "theirs"}
	place.Create(t, foreign, blank, secret)
	place.Create(t, byMachine, byDisk, bySecret)
	for vm, kind := range map[*v1alpha1.VirtualMachine]string{
		byMachine: "KubeVirt VirtualMachine by-machine", byDisk: "DataVolume by-disk-root", bySecret: "Secret by-secret-cloudinit",
	} {
		got := because(t, vm, v1alpha1.ReasonNameTaken)
		assert.Equal(t, v1alpha1.MachineFailed, got.Status.Phase)
		assert.Contains(t, got.Status.Message, "there is a "+kind+" that was not made for this machine")
	}
	spec := foreign.Spec.DeepCopy()
	for _, o := range []client.Object{foreign, blank, secret} {
		uid := o.GetUID()
		read(t, o)
		assert.Equal(t, uid, o.GetUID())
		assert.Empty(t, o.GetLabels()[v1alpha1.LabelMachineUID])
		assert.Empty(t, o.GetOwnerReferences())
	}
	assert.Equal(t, "theirs", string(secret.Data["userdata"]))
	assert.Equal(t, spec, &foreign.Spec)
	for _, o := range []client.Object{foreign, blank, secret} {
		remove(t, o)
	}
	for _, vm := range []*v1alpha1.VirtualMachine{byMachine, byDisk, bySecret} {
		runs(t, vm)
	}
}
