// Package claim tells which MemberCluster a cluster belongs to, where several
// lead to it.
package claim

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// claimIndexField that MemberClusters are indexed by: the cluster that they are accepted to
// be. Looking through the whole fleet for each member would cost its square.
const claimIndexField = "claim"

// AddIndex has MemberClusters found by their cluster. Call it before the cache starts.
func AddIndex(ctx context.Context, indexer client.FieldIndexer) error {
	return indexer.IndexField(ctx, &v1alpha1.MemberCluster{}, claimIndexField, func(o client.Object) []string {
		if member, is := o.(*v1alpha1.MemberCluster); is && memberstatus.ClaimedCluster(member) != "" {
			return []string{string(memberstatus.ClaimedCluster(member))}
		}
		return nil
	})
}

// FindHolder is fleet.Holder, among the members that the cache shows.
func FindHolder(ctx context.Context, cached client.Reader, member *v1alpha1.MemberCluster, cluster types.UID) (string, error) {
	if cluster == "" {
		return "", nil
	}
	var list v1alpha1.MemberClusterList
	if err := cached.List(ctx, &list, client.MatchingFields{claimIndexField: string(cluster)}, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("listing the MemberClusters of cluster %s: %w", cluster, err)
	}
	return memberstatus.FindHolder(list.Items, member, cluster), nil
}
