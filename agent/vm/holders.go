package vm

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// UIDIndex is the field index of VirtualMachines by their UID.
const UIDIndex = "uid"

// ImageIndex is the field index of VirtualMachines by the images they hold. HeldImages
// returns the values of a machine, ImageIndexKeys the values to look up for an image.
const ImageIndex = "image"

// HeldImages returns what a machine holds, running or stopped: the image that its spec
// names, by name, and the one that its root disk was cloned from, by UID. They can differ:
// the reference may change, and an image may be recreated under its name.
func HeldImages(vm *v1alpha1.VirtualMachine) []string {
	held := []string{vm.ImageNamespacedName().String()}
	if vm.Status.Pinned != nil {
		held = append(held, string(vm.Status.Pinned.UID))
	}
	return held
}

// ImageIndexKeys returns the values of ImageIndex under which the holders of an image are.
func ImageIndexKeys(img *v1alpha1.VMDiskImage) []string {
	return []string{types.NamespacedName{Namespace: img.Namespace, Name: img.Name}.String(), string(img.UID)}
}

// ListHolders returns those of vms that hold an image, sorted by name. The result shares no
// memory with vms, which may be of a cache.
func ListHolders(vms []v1alpha1.VirtualMachine, img *v1alpha1.VMDiskImage) []image.Holder {
	return SortHolders(AppendHolders(nil, vms, img))
}

// AppendHolders appends those of vms that hold an image, unsorted and possibly twice.
func AppendHolders(holders []image.Holder, vms []v1alpha1.VirtualMachine, img *v1alpha1.VMDiskImage) []image.Holder {
	imageName := types.NamespacedName{Namespace: img.Namespace, Name: img.Name}
	for i := range vms {
		vm := &vms[i]
		isPinned := vm.Status.Pinned != nil && vm.Status.Pinned.UID == img.UID
		if !isPinned && vm.ImageNamespacedName() != imageName {
			continue
		}
		h := image.Holder{Name: vm.Namespace + "/" + vm.Name}
		if isPinned {
			h.Pin = vm.Status.Pinned.DeepCopy()
		}
		holders = append(holders, h)
	}
	return holders
}

// SortHolders sorts by name and removes duplicates. One with a pin stays.
func SortHolders(holders []image.Holder) []image.Holder {
	unpinned := func(h image.Holder) int {
		if h.Pin == nil {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(holders, func(a, b image.Holder) int { return cmp.Or(cmp.Compare(a.Name, b.Name), unpinned(a)-unpinned(b)) })
	return slices.CompactFunc(holders, func(a, b image.Holder) bool { return a.Name == b.Name })
}
