package vm

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ImageIndex is the field index of VirtualMachines by the images they hold; its
// values are those of Images and ImageIndexKeys.
const ImageIndex = "image"

// HeldImages are what a machine holds, running or stopped: the image that it names,
// and the one that its root disk was cloned from, by its UID. The latter can be
// another: a reference may be changed, and a name used again.
func HeldImages(vm *v1alpha1.VirtualMachine) []string {
	held := []string{vm.ImageNamespacedName().String()}
	if vm.Status.Pinned != nil {
		held = append(held, string(vm.Status.Pinned.UID))
	}
	return held
}

// ImageIndexKeys are the values under which the holders of an image are indexed.
func ImageIndexKeys(img *v1alpha1.VMDiskImage) []string {
	return []string{types.NamespacedName{Namespace: img.Namespace, Name: img.Name}.String(), string(img.UID)}
}

// ListHolders are those of some machines that hold an image, by name. Nothing of the
// machines is kept: they can be many, and can be those of a cache.
func ListHolders(vms []v1alpha1.VirtualMachine, img *v1alpha1.VMDiskImage) []image.Holder {
	return SortHolders(AppendHolders(nil, vms, img))
}

// AppendHolders adds those of some machines that hold an image to what Sorted is
// made of.
func AppendHolders(holders []image.Holder, vms []v1alpha1.VirtualMachine, img *v1alpha1.VMDiskImage) []image.Holder {
	named := types.NamespacedName{Namespace: img.Namespace, Name: img.Name}
	for i := range vms {
		vm := &vms[i]
		pins := vm.Status.Pinned != nil && vm.Status.Pinned.UID == img.UID
		if !pins && vm.ImageNamespacedName() != named {
			continue
		}
		h := image.Holder{Name: vm.Namespace + "/" + vm.Name}
		if pins {
			h.Pin = vm.Status.Pinned.DeepCopy()
		}
		holders = append(holders, h)
	}
	return holders
}

// SortHolders has each holder once, by name.
func SortHolders(holders []image.Holder) []image.Holder {
	slices.SortStableFunc(holders, func(a, b image.Holder) int { return cmp.Compare(a.Name, b.Name) })
	return slices.CompactFunc(holders, func(a, b image.Holder) bool { return a.Name == b.Name })
}
