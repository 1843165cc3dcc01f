//go:build linux

package member_test

import (
	"context"
	"fmt"
	"os"
	"strings"
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
	instancetypev1beta1 "kubevirt.io/api/instancetype/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
)

// installKubeVirtOnce installs KubeVirt in the shared member, which had CDI long before.
var installKubeVirtOnce = sync.OnceValue(func() error {
	started := time.Now()
	err := sharedMember.InstallKubeVirt(suiteContext)
	fmt.Fprintf(os.Stderr, "KubeVirt in %s\n", time.Since(started).Round(100*time.Millisecond))
	return err
})

// newVM has the named claim as its root disk.
func newVM(space, name, disk string, strategy kubevirtv1.VirtualMachineRunStrategy) *kubevirtv1.VirtualMachine {
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

func awaitVMStatus(t *testing.T, m *member.Member, key client.ObjectKey, status kubevirtv1.VirtualMachinePrintableStatus, ready bool) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var vm kubevirtv1.VirtualMachine
		require.NoError(c, m.Client().Get(t.Context(), key, &vm))
		require.Equal(c, status, vm.Status.PrintableStatus, "run strategy %s, conditions %v", vm.Status.RunStrategy, vm.Status.Conditions)
		require.Equal(c, ready, vm.Status.Ready)
	}, waitTimeout, pollInterval)
}

func setRunStrategy(t *testing.T, m *member.Member, key client.ObjectKey, strategy kubevirtv1.VirtualMachineRunStrategy) {
	t.Helper()
	vm := &kubevirtv1.VirtualMachine{}
	require.NoError(t, m.Client().Get(t.Context(), key, vm))
	old := vm.DeepCopy()
	vm.Spec.RunStrategy = ptr.To(strategy)
	require.NoError(t, m.Client().Patch(t.Context(), vm, client.MergeFrom(old)))
}

// awaitVMStopped returns when virt-controller knows that the instance of a halted
// machine is gone; Stopped it says before. In between RerunOnFailure would be
// recorded as a strategy that has had its instance already, and none is started
// before somebody asks for one (KubeVirt 1.8.0,
// pkg/virt-controller/watch/vm/vm.go:1041, 1069 and 2477).
func awaitVMStopped(t *testing.T, m *member.Member, key client.ObjectKey) {
	t.Helper()
	awaitVMStatus(t, m, key, kubevirtv1.VirtualMachineStatusStopped, false)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var vm kubevirtv1.VirtualMachine
		require.NoError(c, m.Client().Get(t.Context(), key, &vm))
		require.False(c, vm.Status.Created)
		require.Empty(c, listLaunchers(c, m, key))
	}, waitTimeout, pollInterval)
}

// deleteVM deletes a machine and waits until nothing is left of it.
func deleteVM(t *testing.T, m *member.Member, key client.ObjectKey) {
	t.Helper()
	require.NoError(t, m.Client().Delete(t.Context(), &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		for _, kind := range []client.Object{&kubevirtv1.VirtualMachine{}, &kubevirtv1.VirtualMachineInstance{}} {
			err := m.Client().Get(t.Context(), key, kind)
			require.True(c, apierrors.IsNotFound(err), "%T: %v, finalizers %v", kind, err, kind.GetFinalizers())
		}
		require.Empty(c, listLaunchers(c, m, key))
	}, waitTimeout, pollInterval)
}

func listLaunchers(t require.TestingT, m *member.Member, key client.ObjectKey) []corev1.Pod {
	var pods, of corev1.PodList
	require.NoError(t, m.Client().List(suiteContext, &pods, client.InNamespace(key.Namespace), client.MatchingLabels{kubevirtv1.AppLabel: "virt-launcher"}))
	for _, pod := range pods.Items {
		if pod.Annotations[kubevirtv1.DomainAnnotation] == key.Name {
			of.Items = append(of.Items, pod)
		}
	}
	return of.Items
}

// TestVMStartsStopsAndIsDeleted with a root disk cloned from another namespace.
func TestVMStartsStopsAndIsDeleted(t *testing.T) {
	t.Parallel()
	require.NoError(t, installKubeVirtOnce())
	space := createNamespace(t, "machines")
	importImage(t, "vm-image", simulator.ClassCSI, true)
	for name, snapshot := range map[string]bool{"of-snapshot": true, "of-claim": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := client.ObjectKey{Namespace: space, Name: name}
			createObject(t, newVM(space, name, name, kubevirtv1.RunStrategyAlways))
			createObject(t, newClone(space, name, "vm-image", simulator.ClassCSI, "2Gi", snapshot))
			awaitVMStatus(t, sharedMember, key, kubevirtv1.VirtualMachineStatusRunning, true)
			pods := listLaunchers(t, sharedMember, key)
			require.Len(t, pods, 1)
			require.Equal(t, simulator.NodeName, pods[0].Spec.NodeName)
			setRunStrategy(t, sharedMember, key, kubevirtv1.RunStrategyHalted)
			awaitVMStopped(t, sharedMember, key)
			setRunStrategy(t, sharedMember, key, kubevirtv1.RunStrategyRerunOnFailure)
			awaitVMStatus(t, sharedMember, key, kubevirtv1.VirtualMachineStatusRunning, true)
			deleteVM(t, sharedMember, key)
			requireCleanDeleteIn(t, space, name)
		})
	}
}

func TestGuestPowerOffAndCrash(t *testing.T) {
	t.Parallel()
	require.NoError(t, installKubeVirtOnce())
	space := createNamespace(t, "guests")
	for strategy, again := range map[kubevirtv1.VirtualMachineRunStrategy]struct{ afterPowerOff, afterCrash bool }{
		kubevirtv1.RunStrategyAlways:         {true, true},
		kubevirtv1.RunStrategyRerunOnFailure: {false, true},
		kubevirtv1.RunStrategyManual:         {false, false},
	} {
		for what, c := range map[string]struct {
			end   func(context.Context, client.ObjectKey) error
			again bool
		}{
			"power-off": {sharedMember.VirtHandler().PowerOffGuest, again.afterPowerOff},
			"crash":     {sharedMember.VirtHandler().CrashGuest, again.afterCrash},
		} {
			name := strings.ToLower(string(strategy)) + "-" + what
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				key := client.ObjectKey{Namespace: space, Name: name}
				disk := newDataVolume(name, simulator.ClassCSI, "", nil)
				disk.Namespace = space
				createObject(t, disk)
				createObject(t, newVM(space, name, name, strategy))
				if strategy == kubevirtv1.RunStrategyManual {
					awaitVMStatus(t, sharedMember, key, kubevirtv1.VirtualMachineStatusStopped, false)
					requestStateChange(t, sharedMember, key, kubevirtv1.StartRequest)
				}
				awaitVMStatus(t, sharedMember, key, kubevirtv1.VirtualMachineStatusRunning, true)
				var first kubevirtv1.VirtualMachineInstance
				require.NoError(t, sharedMember.Client().Get(t.Context(), key, &first))
				require.NoError(t, c.end(t.Context(), key))
				if !c.again {
					awaitVMStatus(t, sharedMember, key, kubevirtv1.VirtualMachineStatusStopped, false)
				}
				require.EventuallyWithT(t, func(check *assert.CollectT) {
					var next kubevirtv1.VirtualMachineInstance
					err := sharedMember.Client().Get(t.Context(), key, &next)
					if c.again {
						require.NoError(check, err)
						require.NotEqual(check, first.UID, next.UID)
						require.Equal(check, kubevirtv1.Running, next.Status.Phase)
					}
				}, waitTimeout, pollInterval)
				deleteVM(t, sharedMember, key)
			})
		}
	}
}

// requestStateChange does what virt-api's start and stop do with machines whose run
// strategy says neither.
func requestStateChange(t *testing.T, m *member.Member, key client.ObjectKey, action kubevirtv1.StateChangeRequestAction) {
	t.Helper()
	vm := &kubevirtv1.VirtualMachine{}
	require.NoError(t, m.Client().Get(t.Context(), key, vm))
	old := vm.DeepCopy()
	vm.Status.StateChangeRequests = []kubevirtv1.VirtualMachineStateChangeRequest{{Action: action}}
	require.NoError(t, m.Client().Status().Patch(t.Context(), vm, client.MergeFrom(old)))
}

func TestInstancetypeAndPreference(t *testing.T) {
	t.Parallel()
	require.NoError(t, installKubeVirtOnce())
	space := createNamespace(t, "instancetypes")
	size := instancetypev1beta1.VirtualMachineInstancetypeSpec{
		CPU: instancetypev1beta1.CPUInstancetype{Guest: 3}, Memory: instancetypev1beta1.MemoryInstancetype{Guest: resource.MustParse("96Mi")},
	}
	taste := instancetypev1beta1.VirtualMachinePreferenceSpec{
		Devices: &instancetypev1beta1.DevicePreferences{PreferredDiskBus: kubevirtv1.DiskBusSATA},
	}
	createObject(t, &instancetypev1beta1.VirtualMachineClusterInstancetype{ObjectMeta: metav1.ObjectMeta{Name: "three"}, Spec: size})
	createObject(t, &instancetypev1beta1.VirtualMachineClusterPreference{ObjectMeta: metav1.ObjectMeta{Name: "sata"}, Spec: taste})
	createObject(t, &instancetypev1beta1.VirtualMachineInstancetype{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "three"}, Spec: size})
	createObject(t, &instancetypev1beta1.VirtualMachinePreference{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "sata"}, Spec: taste})
	for name, kinds := range map[string][2]string{
		"of-cluster":   {"VirtualMachineClusterInstancetype", "VirtualMachineClusterPreference"},
		"of-namespace": {"VirtualMachineInstancetype", "VirtualMachinePreference"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := newDataVolume(name, simulator.ClassCSI, "", nil)
			disk.Namespace = space
			createObject(t, disk)
			vm := newVM(space, name, name, kubevirtv1.RunStrategyAlways)
			vm.Spec.Instancetype = &kubevirtv1.InstancetypeMatcher{Name: "three", Kind: kinds[0]}
			vm.Spec.Preference = &kubevirtv1.PreferenceMatcher{Name: "sata", Kind: kinds[1]}
			vm.Spec.Template.Spec.Domain.Resources = kubevirtv1.ResourceRequirements{}
			vm.Spec.Template.Spec.Domain.Devices.Disks[0].DiskDevice = kubevirtv1.DiskDevice{}
			createObject(t, vm)
			key := client.ObjectKeyFromObject(vm)
			awaitVMStatus(t, sharedMember, key, kubevirtv1.VirtualMachineStatusRunning, true)
			var vmi kubevirtv1.VirtualMachineInstance
			require.NoError(t, sharedMember.Client().Get(t.Context(), key, &vmi))
			require.EqualValues(t, 3, vmi.Spec.Domain.CPU.Sockets*vmi.Spec.Domain.CPU.Cores*vmi.Spec.Domain.CPU.Threads)
			require.Equal(t, "96Mi", vmi.Spec.Domain.Memory.Guest.String())
			require.NotNil(t, vmi.Spec.Domain.Devices.Disks[0].Disk)
			require.Equal(t, kubevirtv1.DiskBusSATA, vmi.Spec.Domain.Devices.Disks[0].Disk.Bus)
		})
	}
}

// TestInvalidVMsAreRejected as virt-api refuses them.
func TestInvalidVMsAreRejected(t *testing.T) {
	t.Parallel()
	require.NoError(t, installKubeVirtOnce())
	for name, c := range map[string]struct {
		spoil   func(*kubevirtv1.VirtualMachine)
		message string
	}{
		"disk without volume": {
			func(vm *kubevirtv1.VirtualMachine) { vm.Spec.Template.Spec.Volumes = nil },
			"spec.template.spec.domain.devices.disks[0].Name",
		},
		"no run strategy": {
			func(vm *kubevirtv1.VirtualMachine) { vm.Spec.RunStrategy = nil },
			"RunStrategy",
		},
		"volume without source": {
			func(vm *kubevirtv1.VirtualMachine) {
				vm.Spec.Template.Spec.Volumes[0].VolumeSource = kubevirtv1.VolumeSource{}
			},
			"spec.template.spec.volumes[0]",
		},
		"cloud-init without data": {
			func(vm *kubevirtv1.VirtualMachine) {
				vm.Spec.Template.Spec.Volumes[0].VolumeSource = kubevirtv1.VolumeSource{CloudInitNoCloud: &kubevirtv1.CloudInitNoCloudSource{}}
			},
			"spec.template.spec.volumes[0].cloudInitNoCloud",
		},
	} {
		t.Run(name, func(t *testing.T) {
			vm := newVM(namespace, "refused", "nothing", kubevirtv1.RunStrategyHalted)
			c.spoil(vm)
			err := sharedMember.Client().Create(t.Context(), vm)
			require.ErrorContains(t, err, "denied the request")
			require.ErrorContains(t, err, c.message)
		})
	}
}
