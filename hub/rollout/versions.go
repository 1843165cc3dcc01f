package rollout

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// toStoredTime is a time as the API server stores it: read again, it is the same.
func toStoredTime(t time.Time) *metav1.Time {
	at := metav1.NewTime(t.UTC().Truncate(time.Second))
	return &at
}

// updatedVersions returns the versions that a FleetDiskImage has had, the one that
// its spec asks for in front. It is the stored list itself where that holds.
func updatedVersions(img *v1alpha1.FleetDiskImage, now time.Time) []v1alpha1.VersionStatus {
	former := img.Status.Versions
	name := CurrentImage(img)
	front := v1alpha1.VersionStatus{
		Version: img.Spec.Version, Namespace: name.Namespace, Image: name.Name,
		Revision: img.Spec.Template.Revision(), Since: *toStoredTime(now),
	}
	if len(former) > 0 && sameVersion(&former[0], &front) {
		return former
	}
	versions := make([]v1alpha1.VersionStatus, 0, 1+len(former))
	versions = append(versions, front)
	for i := range former {
		if former[i].Version != front.Version {
			versions = append(versions, former[i])
		}
	}
	return slices.Clip(versions[:min(len(versions), v1alpha1.MaxVersions)])
}

// sameVersion compares all but since when.
func sameVersion(a, b *v1alpha1.VersionStatus) bool {
	return a.Version == b.Version && a.Namespace == b.Namespace && a.Image == b.Image && a.Revision == b.Revision
}
