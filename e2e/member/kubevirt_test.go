//go:build linux

package member_test

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/simulator"
)

// lateKubeVirt installs KubeVirt in the shared member, which had CDI long before.
var lateKubeVirt = sync.OnceValue(func() error {
	started := time.Now()
	err := one.InstallKubeVirt(contextOfAll)
	fmt.Fprintf(os.Stderr, "KubeVirt in %s\n", time.Since(started).Round(100*time.Millisecond))
	return err
})

// machine has the named claim as its root disk.
func machine(space, name, disk string, strategy kubevirtv1.VirtualMachineRunStrategy) *kubevirtv1.VirtualMachine {
	return &kubevirtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: name},
		Spec: kubevirtv1.VirtualMachineSpec{
			RunStrategy: ptr.To(strategy),
			Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: kubevirtv1.VirtualMachineInstanceSpec{
				Domain: kubevirtv1.DomainSpec{
					Resources: kubevirtv1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}},
					Devices: kubevirtv1.Devices{Disks: []kubevirtv1.Disk{{
						Name: "root", DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{Bus: kubevirtv1.DiskBusVirtio}},
					}}},
				},
				Volumes: []kubevirtv1.Volume{{
					Name: "root", VolumeSource: kubevirtv1.VolumeSource{DataVolume: &kubevirtv1.DataVolumeSource{Name: disk}},
				}},
			}},
		},
	}
}

func becomes(t *testing.T, m *member.Member, key client.ObjectKey, status kubevirtv1.VirtualMachinePrintableStatus, ready bool) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var vm kubevirtv1.VirtualMachine
		require.NoError(c, m.Client().Get(t.Context(), key, &vm))
		require.Equal(c, status, vm.Status.PrintableStatus, "conditions %v", vm.Status.Conditions)
		require.Equal(c, ready, vm.Status.Ready)
	}, patience, beat)
}

func setStrategy(t *testing.T, m *member.Member, key client.ObjectKey, strategy kubevirtv1.VirtualMachineRunStrategy) {
	t.Helper()
	vm := &kubevirtv1.VirtualMachine{}
	require.NoError(t, m.Client().Get(t.Context(), key, vm))
	old := vm.DeepCopy()
	vm.Spec.RunStrategy = ptr.To(strategy)
	require.NoError(t, m.Client().Patch(t.Context(), vm, client.MergeFrom(old)))
}

// machineGoes deletes a machine and waits until nothing is left of it.
func machineGoes(t *testing.T, m *member.Member, key client.ObjectKey) {
	t.Helper()
	require.NoError(t, m.Client().Delete(t.Context(), &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		for _, kind := range []client.Object{&kubevirtv1.VirtualMachine{}, &kubevirtv1.VirtualMachineInstance{}} {
			err := m.Client().Get(t.Context(), key, kind)
			require.True(c, apierrors.IsNotFound(err), "%T: %v, finalizers %v", kind, err, kind.GetFinalizers())
		}
		require.Empty(c, launchers(t, m, key))
	}, patience, beat)
}

func launchers(t require.TestingT, m *member.Member, key client.ObjectKey) []corev1.Pod {
	var pods, of corev1.PodList
	require.NoError(t, m.Client().List(contextOfAll, &pods, client.InNamespace(key.Namespace), client.MatchingLabels{kubevirtv1.AppLabel: "virt-launcher"}))
	for _, pod := range pods.Items {
		if pod.Annotations[kubevirtv1.DomainAnnotation] == key.Name {
			of.Items = append(of.Items, pod)
		}
	}
	return of.Items
}

func TestMachinesStartStopAndGo(t *testing.T) {
	t.Parallel()
	require.NoError(t, lateKubeVirt())
	create(t, dataVolume("vm-always", simulator.ClassCSI, "", nil))
	vm := machine(namespace, "always", "vm-always", kubevirtv1.RunStrategyAlways)
	create(t, vm)
	key := client.ObjectKeyFromObject(vm)
	becomes(t, one, key, kubevirtv1.VirtualMachineStatusRunning, true)
	setStrategy(t, one, key, kubevirtv1.RunStrategyHalted)
	becomes(t, one, key, kubevirtv1.VirtualMachineStatusStopped, false)
	require.Empty(t, launchers(t, one, key))
	setStrategy(t, one, key, kubevirtv1.RunStrategyRerunOnFailure)
	becomes(t, one, key, kubevirtv1.VirtualMachineStatusRunning, true)
	machineGoes(t, one, key)
}
