package mailbox

import (
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// IsHeartbeat reports whether a root says nothing but that its agent still runs: it is a
// later one of the same cluster, and differs from the one before only in its time.
func IsHeartbeat(before, after *v1alpha1.ClusterReport) bool {
	if before == nil || after == nil || before.Root == nil || after.Root == nil ||
		before.ClusterUID != after.ClusterUID || before.Sequence >= after.Sequence ||
		!slices.Equal(before.Root.Pages, after.Root.Pages) { // most changes are of a page
		return false
	}
	a, b := *before.Root, *after.Root
	a.ObservedAt, b.ObservedAt = metav1.Time{}, metav1.Time{}
	return equalContent(&a, &b)
}

// equalContent is equality.Semantic.DeepEqual. What was decoded from equal texts is equal for the
// standard library too, which allocates nothing for it.
func equalContent(a, b any) bool {
	return reflect.DeepEqual(a, b) || equality.Semantic.DeepEqual(a, b)
}

// Heartbeat says that the member's root had the content of one copy still at a later time.
//
// Invariant: it says so of one stored state of the copy. A reader of another state learns
// nothing from it, however late the Heartbeat arrives.
type Heartbeat struct {
	// CopyVersion is the resourceVersion of the copy on the hub.
	CopyVersion string
	// Sequence and ObservedAt are those of the member's root.
	Sequence   int64
	ObservedAt metav1.Time
}

// ApplyTo returns a copy of a root as of the heartbeat; the same object if the heartbeat is of
// another state of it, or not later. What is returned shares its content with the copy.
func (h Heartbeat) ApplyTo(copied *v1alpha1.ClusterReport) *v1alpha1.ClusterReport {
	if copied == nil || copied.Root == nil || copied.ResourceVersion != h.CopyVersion || copied.Sequence >= h.Sequence {
		return copied
	}
	later, root := *copied, *copied.Root
	later.Sequence, root.ObservedAt = h.Sequence, h.ObservedAt
	later.Root = &root
	return &later
}
