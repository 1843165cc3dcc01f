package rollout

import (
	"slices"
	"time"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// updatedVersions returns the versions of a FleetDiskImage, the current one first. It is
// the stored list itself where that is up to date.
func updatedVersions(img *v1alpha1.FleetDiskImage, now time.Time) []v1alpha1.VersionStatus {
	stored := img.Status.Versions
	name := CurrentImage(img)
	current := v1alpha1.VersionStatus{
		Version: img.Spec.Version, Namespace: name.Namespace, Image: name.Name,
		Revision: img.Spec.Template.Revision(), Since: storedtime.Truncate(now),
	}
	if len(stored) > 0 && sameVersion(&stored[0], &current) {
		return stored
	}
	versions := make([]v1alpha1.VersionStatus, 0, 1+len(stored))
	versions = append(versions, current)
	for i := range stored {
		switch v := &stored[i]; {
		case v.Version != current.Version:
			versions = append(versions, *v)
		case v.Namespace == current.Namespace && v.Image == current.Image:
			versions[0].Succeeded = v.Succeeded
		}
	}
	return slices.Clip(versions[:min(len(versions), v1alpha1.MaxVersions)])
}

// recordFormerSuccesses marks the former versions that a hub of an older version has stored, without
// which of them succeeded: members may have their images, so a rename must not remove their protection.
// Whether the current one succeeded, its status says itself.
func recordFormerSuccesses(versions []v1alpha1.VersionStatus, stored *v1alpha1.FleetDiskImageStatus) {
	if stored.SuccessesRecorded {
		return
	}
	for i := range versions[1:] {
		versions[1+i].Succeeded = true
	}
}

// SameVersions reports whether two lists name the same images, each since the same time. It
// ignores templates: nothing that is desired of members depends on those.
func SameVersions(a, b []v1alpha1.VersionStatus) bool {
	return slices.EqualFunc(a, b, func(a, b v1alpha1.VersionStatus) bool { return sameVersion(&a, &b) && a.Since.Equal(&b.Since) })
}

// sameVersion ignores Since, Succeeded and the template.
func sameVersion(a, b *v1alpha1.VersionStatus) bool {
	return a.Version == b.Version && a.Namespace == b.Namespace && a.Image == b.Image && a.Revision == b.Revision
}
