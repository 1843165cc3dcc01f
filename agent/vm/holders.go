package vm

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// UIDIndex is the field index of VirtualMachines by their UID.
const UIDIndex = "uid"

// ImageIndex is the field index of VirtualMachines by the images they hold. HeldImages
// returns the values of a machine, ImageIndexKeys the values to look up for an image.
const ImageIndex = "image"

// HeldImages returns what a machine holds, running or stopped: the images that its spec
// names, by name, and those that its disks were cloned from, by UID. They can differ: a
// reference may change, and an image may be recreated under its name.
func HeldImages(vm *v1alpha1.VirtualMachine) []string {
	var held []string
	for _, name := range vm.NamedImages() {
		held = append(held, name.String())
	}
	for _, p := range vm.Pins() {
		if uid := string(p.UID); !slices.Contains(held, uid) {
			held = append(held, uid)
		}
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
		h := image.Holder{Name: vm.Namespace + "/" + vm.Name}
		for _, p := range vm.Pins() {
			if p.UID == img.UID {
				h.Pins = append(h.Pins, p.DeepCopy())
			}
		}
		if len(h.Pins) == 0 && !slices.Contains(vm.NamedImages(), imageName) {
			continue
		}
		holders = append(holders, h)
	}
	return holders
}

// SortHolders sorts by name and joins duplicates.
func SortHolders(holders []image.Holder) []image.Holder {
	slices.SortStableFunc(holders, func(a, b image.Holder) int { return cmp.Compare(a.Name, b.Name) })
	var joined []image.Holder
	for _, h := range holders {
		if last := len(joined) - 1; last >= 0 && joined[last].Name == h.Name {
			joined[last].Pins = joinPins(joined[last].Pins, h.Pins)
		} else {
			joined = append(joined, h)
		}
	}
	return joined
}

// joinPins appends those of others that are of other storage.
func joinPins(pins, others []*v1alpha1.PinnedImage) []*v1alpha1.PinnedImage {
	for _, p := range others {
		if !slices.ContainsFunc(pins, func(q *v1alpha1.PinnedImage) bool {
			return kubevirt.ClonedFromValue(*p) == kubevirt.ClonedFromValue(*q)
		}) {
			pins = append(pins, p)
		}
	}
	return pins
}
