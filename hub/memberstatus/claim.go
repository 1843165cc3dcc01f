package memberstatus

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ClaimedCluster returns the cluster that a member is accepted to be; empty for none yet.
func ClaimedCluster(member *v1alpha1.MemberCluster) types.UID { return ResolveClusterUID(member, "") }

// FindHolder returns the name of the other member that a cluster belongs to; empty if the
// given member may have it.
//
// Invariant: a cluster has plans under one name only. Otherwise each of two members would
// take the other's plan for one of its own that it had lost, and raise the version above
// it without end. Agents in different namespaces of one API server are different members.
//
// The member that was accepted first keeps the cluster until it is deleted; the status of
// the other never records it. If both record it, the older member keeps it.
func FindHolder(others []v1alpha1.MemberCluster, member *v1alpha1.MemberCluster, cluster types.UID) string {
	if cluster == "" {
		return ""
	}
	first := member
	for i := range others {
		other := &others[i]
		if other.Name == member.Name || other.Spec.AgentNamespace != member.Spec.AgentNamespace || ClaimedCluster(other) != cluster {
			continue
		}
		if other.Status.ClusterUID != cluster && !other.DeletionTimestamp.IsZero() {
			continue // it never had the cluster, and will not get it
		}
		if claimsBefore(other, first, cluster) {
			first = other
		}
	}
	if first == member {
		return ""
	}
	return first.Name
}

// claimsBefore orders two members that claim one cluster.
func claimsBefore(a, b *v1alpha1.MemberCluster, cluster types.UID) bool {
	if recorded := a.Status.ClusterUID == cluster; recorded != (b.Status.ClusterUID == cluster) {
		return recorded
	}
	order := cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	return order < 0
}
