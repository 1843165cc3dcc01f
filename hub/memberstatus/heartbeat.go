package memberstatus

import (
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// IsHeartbeat reports whether an update of a MemberCluster says only that it reported, as each does
// every one to two minutes. Updates of other kinds are none.
func IsHeartbeat(before, after any) bool {
	former, wasMember := before.(*v1alpha1.MemberCluster)
	later, isMember := after.(*v1alpha1.MemberCluster)
	if !wasMember || !isMember {
		return false
	}
	a, b := *former, *later
	a.ResourceVersion, b.ResourceVersion = "", ""
	a.ManagedFields, b.ManagedFields = nil, nil
	a.Status.LastReport, b.Status.LastReport = nil, nil
	return equality.Semantic.DeepEqual(&a, &b)
}
