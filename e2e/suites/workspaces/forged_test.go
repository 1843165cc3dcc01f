//go:build linux

package workspaces

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestForgedRootDiskIsNotUsed is an author who may read one image of a farm and wants
// something else that is stored there: he writes himself what the agent would
// find written on a root disk.
func TestForgedRootDiskIsNotUsed(t *testing.T) {
	t.Parallel()
	farm, ns := env.CreateNamespace(t), env.CreateNamespace(t)
	img := env.NewSnapshottedImage(farm, "image", "/ok/100ms/image.qcow2")
	treasure := newBlankDataVolume(farm, "treasure")
	env.Create(t, treasure)
	img = createAndAwaitImage(t, img)
	awaitPopulated(t, treasure)

	vm := testenv.NewMachine(ns, "vm", img)
	vm.Spec.IgnoreOnDeploy = true
	env.Create(t, vm)
	vm = awaitReason(t, vm, v1alpha1.ReasonIgnoredOnDeploy)
	forged := newBlankDataVolume(ns, kubevirt.RootDiskName(vm))
	env.Create(t, forged)
	awaitPopulated(t, forged)
	env.Update(t, forged, func() { // by now it is complete: the agent leaves it alone
		forged.Labels = map[string]string{v1alpha1.LabelMachineUID: string(vm.UID)}
		forged.Annotations[v1alpha1.AnnotationClonedFrom] = strings.Join([]string{string(img.UID), img.Status.Revision, "1", treasure.Name}, "/")
	})
	vm = env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		seen, _ := testenv.IsConditionTrue(vm, v1alpha1.ConditionRootDiskReady)
		return seen
	})
	assert.Nil(t, vm.Status.Pinned, "what anybody can write on a DataVolume is not believed")

	require.NoError(t, env.Client().Delete(t.Context(), forged))
	env.AwaitGone(t, forged)
	env.Update(t, vm, func() { vm.Spec.IgnoreOnDeploy = false })
	vm = awaitRunning(t, vm)
	disk := &cdiv1.DataVolume{}
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKey{Namespace: ns, Name: kubevirt.RootDiskName(vm)}, disk))
	require.NotNil(t, disk.Spec.Source.Snapshot)
	assert.Equal(t, img.Status.Serving.VolumeSnapshot, disk.Spec.Source.Snapshot.Name)
	assert.Equal(t, img.Status.Serving.VolumeSnapshot, vm.Status.Pinned.VolumeSnapshot)
}

func newBlankDataVolume(namespace, name string) *cdiv1.DataVolume {
	class := "sim-csi"
	return &cdiv1.DataVolume{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{
			"cdi.kubevirt.io/storage.bind.immediate.requested": "true", "cdi.kubevirt.io/storage.deleteAfterCompletion": "false",
		}},
		Spec: cdiv1.DataVolumeSpec{
			Source: &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}},
			Storage: &cdiv1.StorageSpec{StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			}},
		},
	}
}

func awaitPopulated(t *testing.T, dv *cdiv1.DataVolume) {
	t.Helper()
	require.True(t, testenv.Await(t, func() bool {
		return env.Client().Get(t.Context(), client.ObjectKeyFromObject(dv), dv) == nil && dv.Status.Phase == cdiv1.Succeeded
	}), "DataVolume %s/%s is %s", dv.Namespace, dv.Name, dv.Status.Phase)
}
