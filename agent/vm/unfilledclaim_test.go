package vm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// unfilledClaim returns the claim that CDI makes for a clone, before it has a volume.
func unfilledClaim(dv *cdiv1.DataVolume) *corev1.PersistentVolumeClaim {
	claim := rootDiskClaim(dv, corev1.ClaimPending)
	claim.Status.Capacity = nil
	claim.Annotations = map[string]string{"cdi.kubevirt.io/createdForDataVolume": string(dv.UID)}
	claim.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: ptr.To("cdi.kubevirt.io"), Kind: "VolumeCloneSource", Name: "volume-clone-source-" + string(dv.UID)}
	return claim
}

// withUnfilledClaims gives the clones of a world their claims.
func (w *world) withUnfilledClaims() *world {
	w.Claim = unfilledClaim(w.DataVolume)
	w.changeDisk("tools", func(v *vm.DiskView) { v.Claim = unfilledClaim(v.DataVolume) })
	return w
}

// TestUnfilledCloneFollowsCorrection: a claim that is too large for the storage stays Pending.
func TestUnfilledCloneFollowsCorrection(t *testing.T) {
	both := func(change func(*cdiv1.DataVolume, *corev1.PersistentVolumeClaim)) func(*world) {
		return func(w *world) {
			change(w.DataVolume, w.Claim)
			w.changeDisk("tools", func(v *vm.DiskView) { change(v.DataVolume, v.Claim) })
		}
	}
	for name, tt := range map[string]struct {
		change func(*world)
		want   bool
	}{
		"never had a volume": {func(*world) {}, true},
		"has a volume":       {both(func(_ *cdiv1.DataVolume, c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv-1" }), false},
		"is bound":           {both(func(_ *cdiv1.DataVolume, c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimBound }), false},
		"is lost":            {both(func(_ *cdiv1.DataVolume, c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost }), false},
		"is being deleted":   {both(func(_ *cdiv1.DataVolume, c *corev1.PersistentVolumeClaim) { markDeleted(c) }), false},
		"restored, made for a former DataVolume": {both(func(_ *cdiv1.DataVolume, c *corev1.PersistentVolumeClaim) {
			c.Annotations["cdi.kubevirt.io/createdForDataVolume"] = "uid-of-former"
		}), false},
		"restored from a snapshot": {both(func(_ *cdiv1.DataVolume, c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: ptr.To("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: "backup"}
		}), false},
		"restored file by file": {both(func(_ *cdiv1.DataVolume, c *corev1.PersistentVolumeClaim) { c.Spec.DataSourceRef = nil }), false},
		"of another owner":      {both(func(_ *cdiv1.DataVolume, c *corev1.PersistentVolumeClaim) { c.OwnerReferences[0].UID = "uid-of-other" }), false},
		"of a former machine":   {both(func(_ *cdiv1.DataVolume, c *corev1.PersistentVolumeClaim) { labelAsFormer(c) }), false},
		"of an earlier release, which did not note what it asked for": {both(func(dv *cdiv1.DataVolume, _ *corev1.PersistentVolumeClaim) {
			delete(dv.Annotations, v1alpha1.AnnotationRequestedStorage)
		}), false},
		"was complete": {func(w *world) {
			w.VM.Status.RootDisk.Ready, w.diskStatus("tools").Volume.Ready = true, true
		}, false},
		"its source is gone": {func(w *world) { w.sourceExists = false }, false},
		"young":              {func(w *world) { w.Now = w.Now.Add(-time.Second) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newStuckClonesWorld(t).withUnfilledClaims()
			assert.Empty(t, w.reconcile().DeleteDisks)
			tt.change(w)
			correctSize(w)
			d := w.reconcile()
			if !tt.want {
				assert.Empty(t, d.DeleteDisks)
				return
			}
			require.Len(t, d.DeleteDisks, 2)
			assert.Equal(t, vm.DeleteTarget{Name: "vm-root", UID: "uid-of-disk", ResourceVersion: "7"}, d.DeleteDisks[0])
			w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk, "and is replaced")
			d = w.reconcile()
			require.Len(t, d.CreateDisks, 2)
			for i, want := range []string{"10Gi", "3Gi"} {
				got := d.CreateDisks[i].Spec.Storage.Resources.Requests[corev1.ResourceStorage]
				assert.Equal(t, want, got.String())
			}
			w.withUnfilledClaims()
			w.Now = w.Now.Add(time.Hour)
			assert.Empty(t, w.reconcile().DeleteDisks)
		})
	}
}

// TestEditedImageKeepsRunningClone: its class is of another revision than the one that is cloned.
func TestEditedImageKeepsRunningClone(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*v1alpha1.VMDiskImageSpec)
	}{
		"another class": {func(s *v1alpha1.VMDiskImageSpec) { s.StorageClass = "next" }},
		"another size":  {func(s *v1alpha1.VMDiskImageSpec) { s.DiskSize = resource.MustParse("100Gi") }},
		"neither":       {func(*v1alpha1.VMDiskImageSpec) {}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newStuckClonesWorld(t).withUnfilledClaims()
			w.DataVolume.Status.Phase, w.DataVolume.Status.Progress = cdiv1.CloneInProgress, "95.0%"
			assert.Empty(t, w.reconcile().DeleteDisks)
			img := w.Pinned.DeepCopy()
			tt.edit(&img.Spec)
			w.Image, w.Pinned = img, img
			assert.Empty(t, w.reconcile().DeleteDisks)
		})
	}
	t.Run("taken back", func(t *testing.T) {
		w := newStuckClonesWorld(t).withUnfilledClaims()
		asked := w.DataVolume.Annotations[v1alpha1.AnnotationRequestedStorage]
		img := w.Pinned.DeepCopy()
		img.Spec.StorageClass = "first"
		w.DataVolume.Annotations[v1alpha1.AnnotationRequestedStorage] = asked + "next"
		w.Image, w.Pinned = img, img
		assert.Empty(t, w.reconcile().DeleteDisks)
		w.VM.Status.Pinned.Revision = img.Spec.Revision()
		img.Status.Serving.Revision = img.Spec.Revision()
		w.DataVolume.Annotations[v1alpha1.AnnotationClonedFrom] = kubevirt.ClonedFromValue(*w.VM.Status.Pinned)
		assert.Len(t, w.reconcile().DeleteDisks, 1)
	})
}

// TestUnfilledClaimIsReadLive: the cache may lag behind one that has its volume by now.
func TestUnfilledClaimIsReadLive(t *testing.T) {
	w := newStuckClonesWorld(t).withUnfilledClaims()
	correctSize(w)
	v := w.View
	require.True(t, w.decideChecked(v).NeedsLive)
	v.Live, v.SourceExists = true, true
	assert.Empty(t, w.decideChecked(v).DeleteDisks, "not by the cache")
	v.LiveClaim = v.Claim
	require.Len(t, w.decideChecked(v).DeleteDisks, 1)
	v.Claim = v.Claim.DeepCopy()
	v.Claim.Spec.VolumeName = "pv-1"
	v.LiveClaim = v.Claim
	assert.Empty(t, w.decideChecked(v).DeleteDisks)
}

// TestCloneThatWebhookEnlargesIsNotReplaced: it clones for longer than failedCloneRetryDelay.
func TestCloneThatWebhookEnlargesIsNotReplaced(t *testing.T) {
	w := newStuckClonesWorld(t).withUnfilledClaims()
	for _, dv := range []*cdiv1.DataVolume{w.DataVolume, w.Disks["tools"].DataVolume} {
		dv.Spec.Storage.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: *w.VM.Spec.Resources.DiskSize}
		dv.Spec.Storage.StorageClassName = ptr.To("chosen-by-webhook")
	}
	for range 3 {
		assert.Empty(t, w.reconcile().DeleteDisks)
		w.Now = w.Now.Add(time.Hour)
	}
}

// TestOnlyUnfilledCloneIsReplaced draws what is known of a claim: of all that it may be, only one that CDI
// has made for this DataVolume and that has no volume is given up.
func TestOnlyUnfilledCloneIsReplaced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		flip := func(what string) bool { return rapid.Bool().Draw(t, what) }
		w := newStuckClonesWorld(t).withUnfilledClaims()
		w.DataVolume.Status.Phase = rapid.SampledFrom([]cdiv1.DataVolumePhase{"", cdiv1.Pending, cdiv1.CloneInProgress, cdiv1.WaitForFirstConsumer, cdiv1.PendingPopulation, cdiv1.Succeeded}).Draw(t, "phase")
		unfilled := true
		for _, c := range []struct {
			what   string
			change func()
		}{
			{"has a volume", func() { w.Claim.Spec.VolumeName = "pv-1" }},
			{"is bound", func() { w.Claim.Status.Phase = corev1.ClaimBound }},
			{"is another's", func() { w.Claim.Annotations = nil }},
			{"has another source", func() { w.Claim.Spec.DataSourceRef = nil }},
			{"has no owner", func() { w.Claim.OwnerReferences = []metav1.OwnerReference{} }},
		} {
			if flip(c.what) && flip(c.what+", too") {
				unfilled = false
				c.change()
			}
		}
		correctSize(w)
		for range 3 {
			for _, target := range w.reconcile().DeleteDisks {
				require.True(t, target.Disk != "" || (unfilled && w.DataVolume == nil), "the root disk may hold data")
			}
			w.Now = w.Now.Add(time.Hour)
		}
	})
}
