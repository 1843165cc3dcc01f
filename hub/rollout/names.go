package rollout

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Names returns every VMDiskImage that a FleetDiskImage has or had in the
// members, each once, the current one first.
func Names(img *v1alpha1.FleetDiskImage) []types.NamespacedName {
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

// Rival returns the name of the oldest FleetDiskImage that is older than img and
// has or had a VMDiskImage of a name that img has or had; empty for none. The
// younger of two is to leave the name to the older, or one image would be asked
// for in two ways.
func Rival(img *v1alpha1.FleetDiskImage, all []v1alpha1.FleetDiskImage) string {
	return oldest(img, all, Names(img))
}

// Taken tells whether any FleetDiskImage, be it the Rival or not, is older than img
// and has or had the VMDiskImage that img is to have now.
func Taken(img *v1alpha1.FleetDiskImage, all []v1alpha1.FleetDiskImage) bool {
	return oldest(img, all, []types.NamespacedName{CurrentImage(img)}) != ""
}

// oldest of those that are older than img and have or had one of the names; empty
// for none.
func oldest(img *v1alpha1.FleetDiskImage, all []v1alpha1.FleetDiskImage, names []types.NamespacedName) string {
	var rival *v1alpha1.FleetDiskImage
	for i := range all {
		other := &all[i]
		if older(other, img) && (rival == nil || older(other, rival)) && hasAny(other, names) {
			rival = other
		}
	}
	if rival == nil {
		return ""
	}
	return rival.Name
}

// older orders by creation, then name; nothing is older than itself.
func older(a, b *v1alpha1.FleetDiskImage) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

func hasAny(img *v1alpha1.FleetDiskImage, names []types.NamespacedName) bool {
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
