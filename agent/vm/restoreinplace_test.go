package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const restoreKey = "restore.kubevirt.io/lastRestoreUID"

// replaceClaimByRestore has KubeVirt (1.8) put another claim in the place of data disk scratch's; the machine
// gets the restore's annotation later.
func (w *world) replaceClaimByRestore(restore string) {
	w.replaceClaim("scratch")
	w.changeDisk("scratch", func(v *vm.DiskView) {
		v.Claim.UID = types.UID("uid-of-claim-of-" + restore)
		v.Claim.Annotations = map[string]string{restoreKey: restore}
		v.DataVolume = v.DataVolume.DeepCopy()
		v.DataVolume.Annotations[cdiv1.AnnPrePopulated] = v.DataVolume.Name
	})
}

// newRestoredWorld has a machine that runs with data disk scratch restored in place.
func newRestoredWorld(t *testing.T) *world {
	w := newRunningDisksWorld(t)
	w.replaceClaimByRestore("vmrestore-1")
	w.restoreDisk(w.Disks["scratch"].DataVolume.Name)
	w.reconcile()
	w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
	return w
}

// TestClaimRestoredInPlaceIsRecorded: it has the name of the disk, and the machine has its restore.
func TestClaimRestoredInPlaceIsRecorded(t *testing.T) {
	w := newRestoredWorld(t)
	assert.Equal(t, w.Disks["scratch"].Claim.UID, w.diskStatus("scratch").Volume.ClaimUID)
}

// TestClaimRestoredInPlaceMayBindLate: KubeVirt completes a restore before a claim is bound that waits for its
// first consumer.
func TestClaimRestoredInPlaceMayBindLate(t *testing.T) {
	w := newRunningDisksWorld(t)
	w.replaceClaimByRestore("vmrestore-1")
	w.changeDisk("scratch", func(v *vm.DiskView) { v.Claim.Status.Phase = corev1.ClaimPending })
	w.restoreDisk(w.Disks["scratch"].DataVolume.Name)
	w.reconcile()
	w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
}

// TestClaimRestoredInPlaceIsLost: once it is the disk, its loss is one.
func TestClaimRestoredInPlaceIsLost(t *testing.T) {
	for name, tt := range map[string]struct {
		change   func(*world)
		wantText []string
	}{
		"it is being deleted": {func(w *world) {
			w.changeDisk("scratch", func(v *vm.DiskView) { v.Claim = v.Claim.DeepCopy(); markDeleted(v.Claim) })
		}, []string{"is being deleted", "save in the guest"}},
		"it is gone": {func(w *world) {
			w.changeDisk("scratch", func(v *vm.DiskView) { v.Claim = nil })
		}, []string{"is gone"}},
		"CDI has made another one": {func(w *world) { w.replaceClaim("scratch") }, []string{"another one has taken its place", "accept-claim=uid-of-another-claim-of-scratch"}},
		"CDI has made another one, of a DataVolume that KubeVirt has marked": {func(w *world) {
			w.replaceClaim("scratch")
			w.changeDisk("scratch", func(v *vm.DiskView) {
				v.Claim.Annotations = map[string]string{"restore.kubevirt.io/name": "vmrestore"}
			})
		}, []string{"another one has taken its place"}},
		"another restore has made one, and is not complete": {func(w *world) { w.replaceClaimByRestore("vmrestore-2") }, []string{"wait until no VirtualMachineRestore"}},
		"its DataVolume is gone":                            {func(w *world) { w.removeDataVolume("scratch") }, []string{"DataVolume", "is gone"}},
		"its DataVolume is being deleted": {func(w *world) {
			w.changeDisk("scratch", func(v *vm.DiskView) { v.DataVolume = v.DataVolume.DeepCopy(); markDeleted(v.DataVolume) })
		}, []string{"DataVolume", "is being deleted"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRestoredWorld(t)
			tt.change(w)
			for range 2 {
				d := w.reconcile()
				assert.Empty(t, d.CreateDisks)
				assert.Empty(t, d.DeleteDisks)
				w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost, tt.wantText...)
				assert.False(t, w.hasCondition(v1alpha1.ConditionDisksReady))
			}
		})
	}
}

// TestNextRestoreInPlaceIsRecorded: the machine has its annotation once it is complete.
func TestNextRestoreInPlaceIsRecorded(t *testing.T) {
	w := newRestoredWorld(t)
	w.replaceClaimByRestore("vmrestore-2")
	w.reconcile()
	w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost)
	w.setAnnotation(restoreKey, "vmrestore-2")
	w.reconcile()
	w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
	assert.EqualValues(t, "uid-of-claim-of-vmrestore-2", w.diskStatus("scratch").Volume.ClaimUID)
}

// TestDiskRestoredInPlaceIsNotCreatedAgain: with a status that is lost, only the KubeVirt VirtualMachine says
// that the disk held data.
func TestDiskRestoredInPlaceIsNotCreatedAgain(t *testing.T) {
	w := newRestoredWorld(t)
	w.loseStatus()
	w.changeDisk("scratch", func(v *vm.DiskView) { v.DataVolume, v.Claim = nil, nil })
	d := w.reconcile()
	require.Empty(t, d.CreateDisks)
	w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonDataDiskLost)
}
