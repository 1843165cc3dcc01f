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

// newStuckClonesWorld has a root disk and data disk tools that CDI makes no claim for, for a minute.
func newStuckClonesWorld(t require.TestingT) *world {
	w := newDisksWorld(t)
	w.VM.Spec.Resources = &v1alpha1.MachineResources{DiskSize: ptr.To(resource.MustParse("20Gi"))}
	w.DataVolume = nil
	w.reconcile()
	w.DataVolume.Status.Phase = cdiv1.Pending
	w.changeDisk("tools", func(v *vm.DiskView) { v.DataVolume.Status.Phase = cdiv1.Pending })
	w.completeDisk("scratch")
	w.reconcile()
	w.Now = w.Now.Add(time.Minute)
	return w
}

func correctSize(w *world) {
	w.VM.Spec.Resources.DiskSize = ptr.To(resource.MustParse("10Gi"))
	w.VM.Spec.Disks[0].Size = ptr.To(resource.MustParse("3Gi"))
}

// TestStuckCloneFollowsCorrection: the message says which field to change, and no claim is made before.
func TestStuckCloneFollowsCorrection(t *testing.T) {
	correctClass := func(w *world) {
		w.Image, w.Pinned = w.Image.DeepCopy(), w.Image.DeepCopy()
		w.Image.Spec.StorageClass, w.Pinned.Spec.StorageClass = "next", "next"
		w.changeDisk("tools", func(v *vm.DiskView) {
			v.Image = v.Image.DeepCopy()
			v.Image.Spec.StorageClass = "next"
			v.Pinned = v.Image
		})
	}
	for name, tt := range map[string]struct {
		change     func(*world)
		wantSizes  []string
		wantClass  string
		wantNoneOf string // why nothing is replaced
	}{
		"size":          {change: correctSize, wantSizes: []string{"10Gi", "3Gi"}},
		"class":         {change: correctClass, wantSizes: []string{"20Gi", "1Gi"}, wantClass: "next"},
		"another field": {change: func(w *world) { w.VM.Spec.Version = "2" }, wantNoneOf: "nothing is corrected"},
		"with claims": {change: func(w *world) {
			correctSize(w)
			w.Claim = rootDiskClaim(w.DataVolume, corev1.ClaimPending)
			w.changeDisk("tools", func(v *vm.DiskView) { v.Claim = rootDiskClaim(v.DataVolume, corev1.ClaimPending) })
		}, wantNoneOf: "a restored claim may be bound late"},
		"their source is gone": {change: func(w *world) {
			correctSize(w)
			w.sourceExists = false
			w.Image.Status.Serving, w.Pinned.Status.Serving = nil, nil
			w.changeDisk("tools", func(v *vm.DiskView) { v.Image.Status.Serving = nil })
		}, wantNoneOf: "nothing can be cloned again"},
		"young": {change: func(w *world) {
			correctSize(w)
			w.Now = w.Now.Add(-time.Second)
		}, wantNoneOf: "a webhook may change them at each creation"},
		"complete": {change: func(w *world) {
			correctSize(w)
			w.DataVolume.Status.Phase = cdiv1.Succeeded
			w.changeDisk("tools", func(v *vm.DiskView) { v.DataVolume.Status.Phase = cdiv1.Succeeded })
		}, wantNoneOf: "they are complete"},
		"were complete": {change: func(w *world) {
			correctSize(w)
			w.VM.Status.RootDisk.Ready, w.diskStatus("tools").Volume.Ready = true, true
		}, wantNoneOf: "the guest may have written"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newStuckClonesWorld(t)
			assert.Empty(t, w.reconcile().DeleteDisks)
			tt.change(w)
			d := w.reconcile()
			if tt.wantNoneOf != "" {
				assert.Empty(t, d.DeleteDisks, tt.wantNoneOf)
				return
			}
			require.Len(t, d.DeleteDisks, 2)
			w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk, "is unfinished, of another size or storageClass than the root disk, and is replaced")
			d = w.reconcile()
			require.Len(t, d.CreateDisks, 2)
			for i, want := range tt.wantSizes {
				storage := d.CreateDisks[i].Spec.Storage
				got := storage.Resources.Requests[corev1.ResourceStorage]
				assert.Equal(t, want, got.String())
				assert.Equal(t, tt.wantClass, ptr.Deref(storage.StorageClassName, ""))
			}
			w.Now = w.Now.Add(time.Hour)
			assert.Empty(t, w.reconcile().DeleteDisks)
		})
	}
}

// TestStuckCloneIsReadLive: a claim without the label, which no cache has, may be a restored disk.
func TestStuckCloneIsReadLive(t *testing.T) {
	w := newStuckClonesWorld(t)
	correctSize(w)
	v := w.View
	require.True(t, w.decideChecked(v).NeedsLive)
	v.Live, v.SourceExists, v.LiveClaim = true, true, rootDiskClaim(v.DataVolume, corev1.ClaimBound)
	d := w.decideChecked(v)
	assert.Empty(t, d.DeleteDisks)
	v.LiveClaim = nil
	d = w.decideChecked(v)
	require.Len(t, d.DeleteDisks, 1)
	assert.Equal(t, vm.DeleteTarget{Name: "vm-root", UID: "uid-of-disk", ResourceVersion: "7"}, d.DeleteDisks[0])
}

// TestCloneWithClaimIsNotRebuilt draws a clone that any phase, claim, status and KubeVirt machine may
// belong to, as after a restore, and corrects its size.
func TestCloneWithClaimIsNotRebuilt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newStuckClonesWorld(t)
		phases := []cdiv1.DataVolumePhase{"", cdiv1.Pending, cdiv1.PVCBound, cdiv1.CloneInProgress, cdiv1.WaitForFirstConsumer, cdiv1.Unknown, cdiv1.Succeeded}
		w.DataVolume.Status.Phase = rapid.SampledFrom(phases).Draw(t, "phase")
		w.Claim = rootDiskClaim(w.DataVolume, rapid.SampledFrom([]corev1.PersistentVolumeClaimPhase{"", corev1.ClaimPending, corev1.ClaimBound, corev1.ClaimLost}).Draw(t, "claim"))
		if rapid.Bool().Draw(t, "status is lost") {
			w.loseStatus()
		}
		if rapid.Bool().Draw(t, "KubeVirt machine is lost") {
			w.KubeVirtVM = nil
		}
		correctSize(w)
		for range 3 {
			for _, target := range w.reconcile().DeleteDisks {
				require.NotEmpty(t, target.Disk, "the root disk has a claim")
			}
			w.Now = w.Now.Add(time.Hour)
		}
	})
}
