package memberstatus

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ClaimedCluster is the cluster that a member is accepted to be, empty where it is none
// yet.
func ClaimedCluster(member *v1alpha1.MemberCluster) types.UID { return ResolveClusterUID(member, "") }

// FindHolder returns the name of the other member that a cluster belongs to, empty
// where the given member may have it. One cluster is planned for under one name:
// each of two would take the other's plan for one that it had forgotten, and rise
// above it for ever. Agents in different namespaces are different members, though
// they share an API server.
//
// The one that was accepted first keeps the cluster, until it is gone: the status
// of the other never records it. Where both are recorded, the older one keeps it.
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
			continue // it had nothing, and gets nothing any more
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

// claimsBefore tells which of two members has a cluster, should both claim it.
func claimsBefore(a, b *v1alpha1.MemberCluster, cluster types.UID) bool {
	if recorded := a.Status.ClusterUID == cluster; recorded != (b.Status.ClusterUID == cluster) {
		return recorded
	}
	order := cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	return order < 0
}
