package rollout

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// DesiredImages are the items of one member's plan. No image is named twice.
type DesiredImages struct {
	Images  []v1alpha1.PlannedImage
	Kept    []v1alpha1.KeptImage
	Retired []v1alpha1.RetiredImage
}

// ClusterProgress is how far one member is with the current version.
// KeepsItem, Retry and Effective are those of PlacedCluster; without Effective, the member is
// to have the template.
type ClusterProgress struct {
	Placed, Started, KeepsItem, Succeeded bool
	Retry                                 string
	Effective                             *override.Effective
}

func (p *ClusterProgress) spec(img *v1alpha1.FleetDiskImage) *v1alpha1.VMDiskImageSpec {
	if p.Effective == nil {
		return &img.Spec.Template
	}
	return &p.Effective.Spec
}

// ComputeDesiredImages returns what a FleetDiskImage without a conflict desires of one
// member, placed or not. current is the item that the member's plan has under the
// current name; nil for none.
//
// Invariant: older images stay, whatever the retention says, until the member has the
// current one. Then those beyond the retention are retired, or left to ImagePrunes.
// A FleetDiskImage that is being deleted desires nothing; with deletionPolicy Delete it
// retires all its images.
func ComputeDesiredImages(img *v1alpha1.FleetDiskImage, progress ClusterProgress, current *v1alpha1.PlannedImage, now time.Time) DesiredImages {
	var d DesiredImages
	versions := updatedVersions(img, now)
	if img.DeletionTimestamp != nil {
		if img.Spec.DeletionPolicy == v1alpha1.DeletionDelete {
			d.addRetired(versions, metav1.Duration{})
		}
		return d
	}
	switch {
	case progress.Placed && progress.Started && (!progress.KeepsItem || current == nil):
		d.Images = []v1alpha1.PlannedImage{newPlannedImage(&versions[0], progress.spec(img), current, progress.Retry, now)}
	case progress.Placed && progress.Started:
		d.Images = []v1alpha1.PlannedImage{withRetry(current, progress.Retry, now)}
	case progress.Placed && current != nil:
		d.Images = []v1alpha1.PlannedImage{*current.DeepCopy()}
	}

	keep, unreferencedFor := readRetention(img)
	keep = min(keep, len(versions))
	d.addKept(versions[:keep])
	switch {
	case progress.Placed && !progress.Succeeded:
		d.addKept(versions[keep:])
	case unreferencedFor != nil:
		d.addRetired(versions[keep:], *unreferencedFor)
	}
	return d
}

// ComputeDesiredInConflict returns what a FleetDiskImage with a conflict, or whose placement
// selects no cluster, desires of any member: no new image, and none retired. An older FleetDiskImage that takes one of its
// names must not cost its images their protection. Names that both have are kept beside
// what the older one desires. current is unchanged; it is nil where the plan has no item
// under the current name, or that name is taken.
//
// One that is being deleted desires nothing, and retires nothing.
func ComputeDesiredInConflict(img *v1alpha1.FleetDiskImage, current *v1alpha1.PlannedImage, now time.Time) DesiredImages {
	var d DesiredImages
	if img.DeletionTimestamp != nil {
		return d
	}
	if current != nil {
		d.Images = []v1alpha1.PlannedImage{*current.DeepCopy()}
	}
	d.addKept(updatedVersions(img, now))
	return d
}

func (d *DesiredImages) addKept(versions []v1alpha1.VersionStatus) {
	for i := range versions {
		if v := &versions[i]; !d.containsImage(v) {
			d.Kept = append(d.Kept, v1alpha1.KeptImage{Namespace: v.Namespace, Name: v.Image})
		}
	}
}

func (d *DesiredImages) addRetired(versions []v1alpha1.VersionStatus, unreferencedFor metav1.Duration) {
	for i := range versions {
		if v := &versions[i]; !d.containsImage(v) {
			d.Retired = append(d.Retired, v1alpha1.RetiredImage{Namespace: v.Namespace, Name: v.Image, UnreferencedFor: unreferencedFor})
		}
	}
}

// containsImage compares names, not versions: imageName "a" with version "b-1" and
// imageName "a-b" with version "1" are one image.
func (d *DesiredImages) containsImage(v *v1alpha1.VersionStatus) bool {
	return slices.ContainsFunc(d.Images, func(i v1alpha1.PlannedImage) bool { return i.Namespace == v.Namespace && i.Name == v.Image }) ||
		slices.ContainsFunc(d.Kept, func(i v1alpha1.KeptImage) bool { return i.Namespace == v.Namespace && i.Name == v.Image }) ||
		slices.ContainsFunc(d.Retired, func(i v1alpha1.RetiredImage) bool { return i.Namespace == v.Namespace && i.Name == v.Image })
}

// withRetry returns an item with a token. A new one starts its deadline again, and so does a time
// that is ahead: otherwise the deadline would begin when the clock gets there.
func withRetry(item *v1alpha1.PlannedImage, token string, now time.Time) v1alpha1.PlannedImage {
	planned := *item.DeepCopy()
	planned.PlannedAt = storedtime.Since(storedtime.Truncate(now), planned.PlannedAt)
	if planned.Retry != token {
		planned.Retry, planned.PlannedAt = token, ptr.To(storedtime.Truncate(now))
	}
	return planned
}

// newPlannedImage returns an item with a spec. Another source, or another token, starts its
// deadline again, as a time that is ahead does.
func newPlannedImage(version *v1alpha1.VersionStatus, spec *v1alpha1.VMDiskImageSpec, current *v1alpha1.PlannedImage, token string, now time.Time) v1alpha1.PlannedImage {
	planned := v1alpha1.PlannedImage{Namespace: version.Namespace, Name: version.Image, Spec: *spec.DeepCopy(), Retry: token}
	if current != nil && current.PlannedAt != nil && current.Retry == token && hasSameSource(&current.Spec, spec) {
		planned.PlannedAt = storedtime.Since(storedtime.Truncate(now), current.PlannedAt).DeepCopy()
	} else {
		planned.PlannedAt = ptr.To(storedtime.Truncate(now))
	}
	return planned
}

// hasSameSource mostly saves the digests: a hub that starts does this for each member.
func hasSameSource(a, b *v1alpha1.VMDiskImageSpec) bool {
	return a.Equal(b) || a.SourceDigest() == b.SourceDigest()
}

// readRetention returns how many versions are kept, and how long older ones must be
// unreferenced before they are deleted; nil: they are never deleted automatically.
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
