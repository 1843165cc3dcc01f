//go:build linux

package kind_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleetjourneys"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestVirtualMachine(t *testing.T) {
	f := requireFleet(t)
	runJourney(t, "a machine waits for its image, its disk is cloned from it, byte by byte, for the Pod that KubeVirt starts; it runs, stops and starts, and nobody can delete the image meanwhile", func(t *testing.T) {
		m := f.Members()[0]
		img := fleetjourneys.CreateImage(t, m, "kind-machine", f.ImageSpec(fleetjourneys.SlowDownload, "kind-machine"))
		vm := testenv.NewMachine(img.Namespace, "kind-machine", img)
		require.NoError(t, m.Create(t.Context(), vm))
		fleetjourneys.DeleteAfterTest(t, m.Client, vm.DeepCopy())
		got := &v1alpha1.VirtualMachine{}
		eventually := func(wanted string, holds func(*v1alpha1.VirtualMachine) bool) {
			t.Helper()
			fleetjourneys.AwaitCondition(t, wanted, func() bool {
				got = &v1alpha1.VirtualMachine{}
				return m.Get(t.Context(), client.ObjectKeyFromObject(vm), got) == nil && holds(got)
			}, func() string {
				return fmt.Sprintf("%s %s: %s", got.Status.Phase, got.Status.Reason, got.Status.Message)
			})
		}
		eventually("a machine that waits for its image", testenv.MachineHasReason(v1alpha1.ReasonWaitingForImage))
		eventually("a machine that runs", testenv.MachineHasReason(v1alpha1.ReasonRunning))
		there, why := testenv.IsConditionTrue(got, v1alpha1.ConditionRootDiskReady)
		require.True(t, there, why)
		var disks cdiv1.DataVolumeList
		require.NoError(t, m.List(t.Context(), &disks, client.InNamespace(vm.Namespace), client.MatchingLabels{v1alpha1.LabelMachineUID: string(got.UID)}))
		require.Len(t, disks.Items, 1)
		if f.Offline { // a running guest may write to the disk
			f.requireVolumeBytes(t, m, vm.Namespace, disks.Items[0].Name)
		}
		setRunStrategy(t, m, vm, kubevirtv1.RunStrategyHalted)
		eventually("a machine that is stopped", testenv.MachineHasReason(v1alpha1.ReasonStopped))
		setRunStrategy(t, m, vm, kubevirtv1.RunStrategyAlways)
		eventually("a machine that runs again", testenv.MachineHasReason(v1alpha1.ReasonRunning))

		require.NoError(t, m.Delete(t.Context(), img.DeepCopy()))
		fleetjourneys.AwaitImage(t, m, img.Name, "held by the machine", fleetjourneys.HasPhase(v1alpha1.PhaseTerminating))
		require.NoError(t, m.Delete(t.Context(), vm.DeepCopy()))
		fleetjourneys.AwaitCondition(t, "the image goes with the machine", func() bool {
			return apierrors.IsNotFound(m.Get(t.Context(), client.ObjectKeyFromObject(img), &v1alpha1.VMDiskImage{}))
		}, func() string { return "it is still there" })
	})
}

// setRunStrategy does what virtctl stop and start do.
func setRunStrategy(t *testing.T, m fleetjourneys.Member, vm *v1alpha1.VirtualMachine, strategy kubevirtv1.VirtualMachineRunStrategy) {
	t.Helper()
	machine := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: vm.Name}}
	require.NoError(t, m.Patch(t.Context(), machine, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec": {"runStrategy": %q}}`, strategy))))
}
