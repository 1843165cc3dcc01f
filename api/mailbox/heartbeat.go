package mailbox

import (
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// IsHeartbeat reports whether a root says nothing but that its agent still runs: it is a
// later one of the same cluster, and differs from the one before only in its time.
func IsHeartbeat(before, after *v1alpha1.ClusterReport) bool {
	if before == nil || after == nil || before.Root == nil || after.Root == nil ||
		before.ClusterUID != after.ClusterUID || before.Sequence >= after.Sequence {
		return false
	}
	a, b := *before.Root, *after.Root
	a.ObservedAt, b.ObservedAt = metav1.Time{}, metav1.Time{}
	return equality.Semantic.DeepEqual(&a, &b)
}
