package rollout

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// DesiredImages is what a FleetDiskImage asks of one member. No image is named twice.
type DesiredImages struct {
	Images  []v1alpha1.PlannedImage
	Kept    []v1alpha1.KeptImage
	Retired []v1alpha1.RetiredImage
}

// ClusterProgress is how one member stands with the current version: Has tells that its
// State is Succeeded.
type ClusterProgress struct{ Placed, Started, Succeeded bool }

// ComputeDesiredImages returns what a FleetDiskImage that has no Rival asks of one member,
// placed there or not. current is what the member's plan has under the current
// name, nil for none.
//
// Older images stay, whatever the retention says, until the member has the one that
// takes their place: they may be all that it has. Only then those that are not kept
// go, or are left to whoever prunes.
// A FleetDiskImage that is being deleted asks for nothing any more; with
// deletionPolicy Delete it has all of its images go.
func ComputeDesiredImages(img *v1alpha1.FleetDiskImage, in ClusterProgress, current *v1alpha1.PlannedImage, now time.Time) DesiredImages {
	var w DesiredImages
	versions := updatedVersions(img, now)
	if img.DeletionTimestamp != nil {
		if img.Spec.DeletionPolicy == v1alpha1.DeletionDelete {
			w.addRetired(versions, metav1.Duration{})
		}
		return w
	}
	switch {
	case in.Placed && in.Started:
		w.Images = []v1alpha1.PlannedImage{newPlannedImage(img, &versions[0], current, now)}
	case in.Placed && current != nil:
		w.Images = []v1alpha1.PlannedImage{*current.DeepCopy()}
	}

	keep, unreferencedFor := readRetention(img)
	keep = min(keep, len(versions))
	w.addKept(versions[:keep])
	switch {
	case in.Placed && !in.Succeeded:
		w.addKept(versions[keep:])
	case unreferencedFor != nil:
		w.addRetired(versions[keep:], *unreferencedFor)
	}
	return w
}

// ComputeDesiredInConflict returns what a FleetDiskImage that has a Rival asks of any member: no
// new image, and that none goes. That somebody has made an older one take one of its
// names is no reason for the images that it has rolled out to lose their protection.
// A name that is the older one's, too, is kept beside what that one asks for.
// current stays as it is; it is what the member's plan has under the current name,
// nil for none and where that name is Taken: then it is the older one's.
//
// One that is being deleted asks for nothing, and has no image go with it.
func ComputeDesiredInConflict(img *v1alpha1.FleetDiskImage, current *v1alpha1.PlannedImage, now time.Time) DesiredImages {
	var w DesiredImages
	if img.DeletionTimestamp != nil {
		return w
	}
	if current != nil {
		w.Images = []v1alpha1.PlannedImage{*current.DeepCopy()}
	}
	w.addKept(updatedVersions(img, now))
	return w
}

func (w *DesiredImages) addKept(versions []v1alpha1.VersionStatus) {
	for i := range versions {
		if v := &versions[i]; !w.containsImage(v) {
			w.Kept = append(w.Kept, v1alpha1.KeptImage{Namespace: v.Namespace, Name: v.Image})
		}
	}
}

func (w *DesiredImages) addRetired(versions []v1alpha1.VersionStatus, unreferencedFor metav1.Duration) {
	for i := range versions {
		if v := &versions[i]; !w.containsImage(v) {
			w.Retired = append(w.Retired, v1alpha1.RetiredImage{Namespace: v.Namespace, Name: v.Image, UnreferencedFor: unreferencedFor})
		}
	}
}

// containsImage tells whether the image of a version is named already: imageName "a" with
// version "b-1", and later "a-b" with "1", are one.
func (w *DesiredImages) containsImage(v *v1alpha1.VersionStatus) bool {
	return slices.ContainsFunc(w.Images, func(i v1alpha1.PlannedImage) bool { return i.Namespace == v.Namespace && i.Name == v.Image }) ||
		slices.ContainsFunc(w.Kept, func(i v1alpha1.KeptImage) bool { return i.Namespace == v.Namespace && i.Name == v.Image }) ||
		slices.ContainsFunc(w.Retired, func(i v1alpha1.RetiredImage) bool { return i.Namespace == v.Namespace && i.Name == v.Image })
}

func newPlannedImage(img *v1alpha1.FleetDiskImage, version *v1alpha1.VersionStatus, current *v1alpha1.PlannedImage, now time.Time) v1alpha1.PlannedImage {
	planned := v1alpha1.PlannedImage{Namespace: version.Namespace, Name: version.Image, Spec: *img.Spec.Template.DeepCopy()}
	if current != nil && current.PlannedAt != nil && current.Spec.Revision() == version.Revision {
		planned.PlannedAt = current.PlannedAt.DeepCopy()
	} else {
		planned.PlannedAt = toStoredTime(now)
	}
	return planned
}

// readRetention returns how many versions are kept, and for how long the older ones
// must have been unreferenced to go; nil: they do not go by themselves.
func readRetention(img *v1alpha1.FleetDiskImage) (keep int, unreferencedFor *metav1.Duration) {
	r := img.Spec.Retention
	if r == nil {
		return v1alpha1.DefaultKeepVersions, nil
	}
	keep = int(r.KeepVersions)
	if keep < 1 {
		keep = v1alpha1.DefaultKeepVersions
	}
	return keep, r.KeepUnreferencedFor
}
