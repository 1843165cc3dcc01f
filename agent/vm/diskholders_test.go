package vm_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
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

	dataDisk := kubevirt.DataDiskName(apitest.VirtualMachine("ns", "vm").Obj(), "data")
	asDataDisk := func(disk string) func(o metav1.Object) {
		return func(o metav1.Object) {
			orphan(o)
			o.SetName(dataDisk)
			o.SetLabels(map[string]string{v1alpha1.LabelMachineUID: "uid", v1alpha1.LabelDisk: disk})
		}
	}
	named := func(name string) func(o metav1.Object) {
		return func(o metav1.Object) { orphan(o); o.SetName(name) }
	}
	// KubeVirt copies the labels and annotations of the disk that it took a snapshot of.
	restoredAs := func(name string) func(o metav1.Object) {
		return func(o metav1.Object) {
			named(name)(o)
			annotations := maps.Clone(o.GetAnnotations())
			annotations["restore.kubevirt.io/name"] = "clone"
			o.SetAnnotations(annotations)
		}
	}

	for name, tt := range map[string]struct {
		pin     v1alpha1.PinnedImage
		change  func(o metav1.Object)
		machine string // of namespace ns, or namespace/name
		want    string // empty: held by nobody
		wantPin *v1alpha1.PinnedImage
	}{
		"orphaned":                      {served, orphan, "", "ns/vm-root (orphaned disk)", &served},
		"orphaned, of the claim":        {ofClaim, orphan, "", "ns/vm-root (orphaned disk)", &ofClaim},
		"orphaned, of an older one":     {formerPin, orphan, "", "ns/vm-root (orphaned disk)", &formerPin},
		"orphaned, source is gone":      {forgotten, orphan, "", "ns/vm-root (orphaned disk)", nil},
		"of a machine without a status": {served, orphan, "vm", "ns/vm", &served},
		"taken over by a machine":       {served, func(o metav1.Object) { orphan(o); o.SetLabels(map[string]string{v1alpha1.LabelMachineUID: "new"}) }, "vm", "ns/vm", &served},
		"data disk":                     {served, asDataDisk("data"), "", "ns/" + dataDisk + " (orphaned disk)", &served},
		"data disk of a machine":        {served, asDataDisk("data"), "vm", "ns/vm", &served},
		"another machine's data disk":   {served, asDataDisk("tools"), "vm", "", nil},
		"named for another machine":     {served, orphan, "other", "", nil},
		"copied to another namespace":   {served, orphan, "elsewhere/vm", "", nil},
		"named by a person":             {served, named("copy-of-the-root-disk"), "", "", nil},
		"named too long":                {served, named(strings.Repeat("a", 50) + "-root"), "", "", nil},
		"data disk without a hash":      {served, func(o metav1.Object) { asDataDisk("data")(o); o.SetName("vm-data-disk") }, "", "", nil},
		"restored by KubeVirt":          {served, restoredAs("restore-4a3a1b5e-7d6c-4a8e-9a55-0c1d2e3f4a5b-root"), "", "", nil},
		"restored for the clone's name": {served, restoredAs("clone-root"), "", "", nil},
		"its machine was deleted":       {served, func(metav1.Object) {}, "", "", nil},
		"of another image":              {other, orphan, "", "", nil},
		"of nobody's machine":           {served, func(o metav1.Object) { o.SetOwnerReferences(nil); o.SetLabels(nil) }, "", "", nil},
		"being deleted":                 {served, func(o metav1.Object) { o.SetOwnerReferences(nil); markDeleted(o) }, "", "", nil},
		"owned by KubeVirt's": {served, func(o metav1.Object) {
			o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "vm", UID: "x", Controller: ptr.To(true)}})
		}, "", "", nil},
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
				var machine types.NamespacedName
				if tt.machine != "" {
					machine = types.NamespacedName{Namespace: "ns", Name: tt.machine}
					if ns, name, ok := strings.Cut(tt.machine, "/"); ok {
						machine = types.NamespacedName{Namespace: ns, Name: name}
					}
				}
				holder, held := vm.HolderOfDisk(disk, machine, img)
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
