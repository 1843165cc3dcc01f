package image

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// PublishCandidate is an image that serves and is to be published under some name.
type PublishCandidate struct {
	Name    string
	UID     types.UID
	Created metav1.Time
	// Wanted: the plan in force asks for it.
	Wanted bool
	// Current: the DataSource points at it.
	Current bool
}

// CanPublish reports whether an image has something that a DataSource can point at.
func CanPublish(img *v1alpha1.VMDiskImage) bool {
	return PublishedName(img) != "" && img.DeletionTimestamp == nil && img.Status.Serving != nil && !belongsToOthers(img.Status.Serving) && img.Status.Phase != v1alpha1.PhaseDeleting
}

// ChoosePublisher returns which of several images is published under one name: those that the plan
// asks for go first, then the last created. While it is not known what the plan asks for, the
// current one stays.
func ChoosePublisher(candidates []PublishCandidate, planUnknown bool) (chosen PublishCandidate, ok bool) {
	if len(candidates) == 0 {
		return chosen, false
	}
	return slices.MinFunc(candidates, func(a, b PublishCandidate) int {
		return cmp.Or(
			compareBool(a.Current && planUnknown, b.Current && planUnknown),
			compareBool(a.Wanted, b.Wanted),
			b.Created.Compare(a.Created.Time),
			cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.UID, b.UID),
		)
	}), true
}

// compareBool orders true before false.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}
