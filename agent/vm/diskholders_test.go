package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// An image is held as long as a disk that was cloned from it exists, with or without its machine.
func TestHolderOfDisk(t *testing.T) {
	img := goldenImage(2)
	img.Status.Serving.VolumeSnapshot = "golden-2-snapshot"
	served := pinServedBy(img, false)
	former := v1alpha1.RevisionStatus{Revision: "rev-1", Attempt: 1, AttemptEnded: 1, Outcome: v1alpha1.OutcomeSucceeded, DataVolume: "golden-1"}
	img.Status.Revisions = []v1alpha1.RevisionStatus{former}
	formerPin := v1alpha1.PinnedImage{ImageKey: served.ImageKey, Revision: "rev-1", Attempt: 1, PersistentVolumeClaim: "golden-1"}
	forgotten := formerPin
	forgotten.Attempt, forgotten.PersistentVolumeClaim = 7, "golden-7"
	ofClaim := served
	ofClaim.VolumeSnapshot = ""
	other := served
	other.UID = "uid-of-another"
	orphan := func(o metav1.Object) { o.SetOwnerReferences(nil) }

	for name, tt := range map[string]struct {
		pin     v1alpha1.PinnedImage
		change  func(o metav1.Object)
		machine string
		want    string // empty: held by nobody
		wantPin *v1alpha1.PinnedImage
	}{
		"orphaned":                      {served, orphan, "", "ns/vm-root (orphaned disk)", &served},
		"orphaned, of the claim":        {ofClaim, orphan, "", "ns/vm-root (orphaned disk)", &ofClaim},
		"orphaned, of an older one":     {formerPin, orphan, "", "ns/vm-root (orphaned disk)", &formerPin},
		"orphaned, source is gone":      {forgotten, orphan, "", "ns/vm-root (orphaned disk)", nil},
		"of a machine without a status": {served, orphan, "vm", "ns/vm", &served},
		"taken over by a machine":       {served, orphan, "other", "ns/other", &served},
		"its machine was deleted":       {served, func(metav1.Object) {}, "", "", nil},
		"of another image":              {other, orphan, "", "", nil},
		"of nobody's machine":           {served, func(o metav1.Object) { o.SetOwnerReferences(nil); o.SetLabels(nil) }, "", "", nil},
		"being deleted":                 {served, func(o metav1.Object) { o.SetOwnerReferences(nil); markDeleted(o) }, "", "", nil},
		"owned by others": {served, func(o metav1.Object) {
			o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "vm", UID: "x", Controller: ptr.To(true)}})
		}, "", "ns/vm-root (orphaned disk)", &served},
	} {
		t.Run(name, func(t *testing.T) {
			dv := clonedRootDisk(apitest.VirtualMachine("ns", "vm").Obj(), img, tt.pin, cdiv1.Succeeded)
			claim := rootDiskClaim(dv, corev1.ClaimBound)
			claim.Annotations = dv.Annotations // CDI copies them
			claim.OwnerReferences = nil
			if name == "its machine was deleted" {
				claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "cdi.kubevirt.io/v1beta1", Kind: "DataVolume", Name: dv.Name, UID: dv.UID}}
			}
			for _, disk := range []metav1.Object{dv, claim} {
				if disk == dv || name != "its machine was deleted" {
					tt.change(disk)
				}
				holder, held := vm.HolderOfDisk(disk, tt.machine, img)
				require.Equal(t, tt.want != "", held, "%T", disk)
				if held {
					assert.Equal(t, tt.want, holder.Name)
					assert.Equal(t, tt.machine == "", holder.OrphanedDisk)
					if tt.wantPin == nil {
						assert.Empty(t, holder.Pins)
					} else {
						assert.Equal(t, []*v1alpha1.PinnedImage{tt.wantPin}, holder.Pins)
					}
				}
			}
		})
	}
}

// A machine whose status was lost holds what its disks were cloned from.
func TestPinsOfDisksStay(t *testing.T) {
	pin := pinServedBy(goldenImage(1), true)
	older := pin
	older.Attempt = 7
	of := func(pins ...*v1alpha1.PinnedImage) image.Holder { return image.Holder{Name: "ns/vm", Pins: pins} }
	for _, holders := range [][]image.Holder{{of(), of(&pin), of(&older)}, {of(&pin, &older), of()}, {of(&pin), of(&pin), of(&older), of(&older)}} {
		assert.Equal(t, []image.Holder{of(&pin, &older)}, vm.SortHolders(holders))
	}
}
