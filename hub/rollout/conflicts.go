package rollout

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ImageNames returns the names of all VMDiskImages that a FleetDiskImage has or had in
// the members, each once, the current one first.
func ImageNames(img *v1alpha1.FleetDiskImage) []types.NamespacedName {
	names := make([]types.NamespacedName, 0, 1+len(img.Status.Versions))
	names = append(names, CurrentImage(img))
	for i := range img.Status.Versions {
		v := &img.Status.Versions[i]
		if name := (types.NamespacedName{Namespace: v.Namespace, Name: v.Image}); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// FindConflict returns the oldest FleetDiskImage that is older than img and shares an
// image name with it; empty for none. The younger one yields: otherwise plans would
// hold two specs for one image.
func FindConflict(img *v1alpha1.FleetDiskImage, all []v1alpha1.FleetDiskImage) string {
	return findOldestConflict(img, all, ImageNames(img))
}

// CurrentNameTaken reports whether an older FleetDiskImage has or had img's current
// image name.
func CurrentNameTaken(img *v1alpha1.FleetDiskImage, all []v1alpha1.FleetDiskImage) bool {
	return findOldestConflict(img, all, []types.NamespacedName{CurrentImage(img)}) != ""
}

func findOldestConflict(img *v1alpha1.FleetDiskImage, all []v1alpha1.FleetDiskImage, names []types.NamespacedName) string {
	var oldest *v1alpha1.FleetDiskImage
	for i := range all {
		other := &all[i]
		if storedtime.IsOlder(other, img) && (oldest == nil || storedtime.IsOlder(other, oldest)) && hasAnyName(other, names) {
			oldest = other
		}
	}
	if oldest == nil {
		return ""
	}
	return oldest.Name
}

// FindTakenNames returns the image names that img has or had and an older FleetDiskImage has or had, too.
func FindTakenNames(img *v1alpha1.FleetDiskImage, all []v1alpha1.FleetDiskImage) []types.NamespacedName {
	return slices.DeleteFunc(ImageNames(img), func(name types.NamespacedName) bool {
		return findOldestConflict(img, all, []types.NamespacedName{name}) == ""
	})
}

// hasAnyName is on the path of every decision, so it avoids the list of ImageNames.
func hasAnyName(img *v1alpha1.FleetDiskImage, names []types.NamespacedName) bool {
	current := CurrentImage(img)
	for _, name := range names {
		if name == current {
			return true
		}
		for i := range img.Status.Versions {
			if v := &img.Status.Versions[i]; v.Namespace == name.Namespace && v.Image == name.Name {
				return true
			}
		}
	}
	return false
}
