package rollout

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ImageNames returns every VMDiskImage that a FleetDiskImage has or had in the
// members, each once, the current one first.
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

// FindConflict returns the name of the oldest FleetDiskImage that is older than img and
// has or had a VMDiskImage of a name that img has or had; empty for none. The
// younger of two is to leave the name to the older, or one image would be asked
// for in two ways.
func FindConflict(img *v1alpha1.FleetDiskImage, all []v1alpha1.FleetDiskImage) string {
	return findOldestConflict(img, all, ImageNames(img))
}

// CurrentNameTaken tells whether any FleetDiskImage, be it the Rival or not, is older than img
// and has or had the VMDiskImage that img is to have now.
func CurrentNameTaken(img *v1alpha1.FleetDiskImage, all []v1alpha1.FleetDiskImage) bool {
	return findOldestConflict(img, all, []types.NamespacedName{CurrentImage(img)}) != ""
}

// findOldestConflict of those that are older than img and have or had one of the names; empty
// for none.
func findOldestConflict(img *v1alpha1.FleetDiskImage, all []v1alpha1.FleetDiskImage, names []types.NamespacedName) string {
	var rival *v1alpha1.FleetDiskImage
	for i := range all {
		other := &all[i]
		if isOlder(other, img) && (rival == nil || isOlder(other, rival)) && hasAnyName(other, names) {
			rival = other
		}
	}
	if rival == nil {
		return ""
	}
	return rival.Name
}

// isOlder orders by creation, then name; nothing is older than itself.
func isOlder(a, b *v1alpha1.FleetDiskImage) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

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
