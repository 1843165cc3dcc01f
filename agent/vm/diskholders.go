package vm

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ClonedFromIndex is the field index of machines' disks and their claims by the UID of the image
// that they were cloned from.
const ClonedFromIndex = "cloned-from"

// ClonedImageUID returns the UID of the image that a root disk, or its claim, was cloned from;
// empty for other objects. CDI copies labels and annotations of a DataVolume to its claim.
func ClonedImageUID(disk metav1.Object) types.UID {
	if disk.GetLabels()[v1alpha1.LabelMachineUID] == "" {
		return ""
	}
	uid, _, _ := strings.Cut(disk.GetAnnotations()[v1alpha1.AnnotationClonedFrom], "/")
	return types.UID(uid)
}

// orphanedDisk marks the holder that is a disk without a machine.
const orphanedDisk = " (orphaned disk)"

// HolderOfDisk returns who holds an image by a disk of a machine or its claim: machine, which is the
// VirtualMachine that the disk is labelled for, or, where that is empty since it no longer exists,
// the disk itself. held is false for a disk of another image.
//
// Invariant: a disk counts whatever the status of its machine says. That is lost in a restored
// backup, and a machine may take over a disk of another image than its spec names.
//
// Labels and annotations alone make no disk: tools for backups copy them, and KubeVirt does when it
// clones or restores a machine. Such a copy is not cloned from the image, and may be another
// machine's.
func HolderOfDisk(disk metav1.Object, machine types.NamespacedName, img *v1alpha1.VMDiskImage) (h image.Holder, held bool) {
	if ClonedImageUID(disk) != img.UID || disk.GetDeletionTimestamp() != nil {
		return h, false
	}
	if pin := findCloneSource(img, disk.GetAnnotations()[v1alpha1.AnnotationClonedFrom]); pin != nil {
		h.Pins = append(h.Pins, pin)
	}
	if machine != (types.NamespacedName{}) {
		h.Name = machine.String()
		return h, kubevirt.IsDiskOf(disk, machine)
	}
	h.Name, h.OrphanedDisk = disk.GetNamespace()+"/"+disk.GetName()+orphanedDisk, true
	return h, kubevirt.HasDiskName(disk) && !kubevirt.IsRestored(disk) && len(disk.GetOwnerReferences()) == 0
}

// findCloneSource returns what an image still has of what a disk was cloned from; nil for
// nothing.
func findCloneSource(img *v1alpha1.VMDiskImage, clonedFrom string) *v1alpha1.PinnedImage {
	for _, p := range cloneSources(img) {
		ofClaim := p
		ofClaim.VolumeSnapshot = ""
		for _, source := range []v1alpha1.PinnedImage{p, ofClaim} {
			if kubevirt.ClonedFromValue(source) == clonedFrom {
				return &source
			}
		}
	}
	return nil
}
