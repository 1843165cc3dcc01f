package vm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// loseStatus has a machine restored without its status.
func (w *world) loseStatus() {
	w.VM.Status = v1alpha1.VirtualMachineStatus{}
	w.refreshPinned()
}

// growAndRenew changes the spec of a blank disk and has the image of another serve a newer revision.
func (w *world) growAndRenew() {
	w.VM.Spec.Disks[1].Size = ptr.To(resource.MustParse("9Gi"))
	w.changeDisk("tools", func(v *vm.DiskView) { v.Image = toolsImage(2) })
}

// TestRestoredIncompleteDataDiskIsKept: a restored disk may be filled by others while CDI shows it as
// incomplete.
func TestRestoredIncompleteDataDiskIsKept(t *testing.T) {
	for name, lose := range map[string]func(*world){
		"with its KubeVirt machine": func(w *world) {
			w.setKubeVirtStatus("Stopped", nil) // backups restore no status
		},
		"before its KubeVirt machine": func(w *world) { w.KubeVirtVM = nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := newRunningDisksWorld(t)
			w.growAndRenew()
			lose(w)
			w.loseStatus()
			for _, disk := range []string{"tools", "scratch"} {
				w.changeDisk(disk, func(v *vm.DiskView) {
					v.DataVolume.Status.Phase, v.Claim.Status.Phase = cdiv1.Pending, corev1.ClaimPending
				})
			}
			for range 3 {
				d := w.reconcile()
				assert.Empty(t, d.DeleteDisks)
				assert.Empty(t, d.CreateDisks)
			}
			for _, disk := range []string{"tools", "scratch"} {
				w.completeDisk(disk)
			}
			w.withRunningVM()
			w.reconcile()
			w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
		})
	}
}

// TestDataDiskLostWhileAgentWasDown: the status says that the disk is incomplete, and the machine has run
// with it since.
func TestDataDiskLostWhileAgentWasDown(t *testing.T) {
	for _, disk := range []string{"tools", "scratch"} {
		w := newDisksWorld(t)
		w.withRunningVM()
		require.False(t, w.diskStatus(disk).Volume.Ready)
		w.removeDataVolume(disk)
		for range 3 {
			assert.Empty(t, w.reconcile().CreateDisks)
			w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost, "of disk "+disk+" is gone")
		}
		w.KubeVirtVM = nil
		assert.Empty(t, w.reconcile().CreateDisks, "the status remembers")
	}
}

// TestDataDiskThatMayHoldDataIsKept draws a disk that is not complete, and that a machine that has started has,
// or that the status does not know of.
func TestDataDiskThatMayHoldDataIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		flip := func(what string) bool { return rapid.Bool().Draw(t, what) }
		w := newDisksWorld(t)
		w.reconcile()
		w.setKubeVirtStatus("Stopped", map[string]any{
			"created": flip("runs"), "runStrategy": "Always",
		})
		gone := flip("gone")
		for _, disk := range []string{"tools", "scratch"} {
			w.changeDisk(disk, func(v *vm.DiskView) {
				if gone {
					v.DataVolume = nil
					return
				}
				v.DataVolume.Status.Phase = rapid.SampledFrom([]cdiv1.DataVolumePhase{"", cdiv1.Pending, cdiv1.CloneInProgress, cdiv1.WaitForFirstConsumer, cdiv1.Failed}).Draw(t, "phase")
				if flip("has a claim") {
					v.Claim = rootDiskClaim(v.DataVolume, rapid.SampledFrom([]corev1.PersistentVolumeClaimPhase{corev1.ClaimPending, corev1.ClaimBound, corev1.ClaimLost}).Draw(t, "claim"))
					v.Claim.Annotations = map[string]string{"cdi.kubevirt.io/storage.pod.phase": rapid.SampledFrom([]string{"", "Failed", "Succeeded"}).Draw(t, "Pod")}
				}
				if flip("is being deleted") {
					markDeleted(v.DataVolume)
				}
			})
		}
		if flip("status is lost") {
			w.loseStatus()
			if !gone && flip("KubeVirt machine is lost") {
				w.KubeVirtVM = nil
			}
		}
		if flip("spec is changed") {
			w.growAndRenew()
		}
		if flip("blank for an image") {
			w.VM.Spec.Disks[0] = v1alpha1.Disk{Name: "tools", Size: ptr.To(resource.MustParse("2Gi"))}
		}
		w.sourceExists = flip("source exists")
		for range 4 {
			d := w.reconcile()
			require.Empty(t, d.DeleteDisks)
			require.Empty(t, d.CreateDisks)
			w.Now = w.Now.Add(time.Hour)
		}
	})
}

// TestAddedDataDiskIsStoredFirst: the KubeVirt machine may show the disk before the DataVolume does.
func TestAddedDataDiskIsStoredFirst(t *testing.T) {
	w := newRunningDisksWorld(t)
	w.setKubeVirtStatus("Stopped", map[string]any{"runStrategy": "Always"})
	w.VM.Spec.Disks = append(w.VM.Spec.Disks, v1alpha1.Disk{Name: "late", Size: ptr.To(resource.MustParse("1Gi"))})
	w.changeDisk("late", func(*vm.DiskView) {})
	first := w.decide()
	require.True(t, first.StoreStatusFirst)
	require.Equal(t, "late", first.Status.Disks[2].Name)
	require.NotNil(t, first.Status.Disks[2].Volume)
	assert.False(t, first.Status.Disks[2].Volume.Ready)

	require.Len(t, w.reconcile().CreateDisks, 1)
	v := w.View
	created := v.Disks["late"]
	v.Disks = map[string]vm.DiskView{"tools": v.Disks["tools"], "scratch": v.Disks["scratch"], "late": {}}
	require.True(t, w.decideChecked(v).NeedsLive, "a cache does not decide that it is lost")
	v.VM = v.VM.DeepCopy()
	v.VM.Status.Disks = v.VM.Status.Disks[:2]
	require.True(t, w.decideChecked(v).NeedsLive, "nor without its state")
	v.Disks["late"] = created
	w.reconcile()
	w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonPreparingDataDisk, "disk late is being created")
	assert.False(t, w.diskStatus("late").Volume.Ready)
	w.completeDisk("late")
	w.withRunningVM()
	w.reconcile()
	w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
}
