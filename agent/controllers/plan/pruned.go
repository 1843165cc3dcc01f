package plan

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// findPrunedImages returns the prunes of a plan whose image is gone, by the prune or
// otherwise: no status is left to report them. An image that was created under the name since is
// another one. It reads the cache, which is complete before any controller runs.
func (r *Reconciler) findPrunedImages(ctx context.Context, prunes []v1alpha1.PlannedPrune) (map[plan.Key]v1alpha1.ReportedPrune, error) {
	gone := map[plan.Key]v1alpha1.ReportedPrune{}
	for i := range prunes {
		prune := &prunes[i]
		img := &v1alpha1.VMDiskImage{}
		err := r.Get(ctx, types.NamespacedName{Namespace: prune.Namespace, Name: prune.Name}, img, client.UnsafeDisableDeepCopy)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading VMDiskImage %s/%s, which is to be pruned: %w", prune.Namespace, prune.Name, err)
		}
		if err == nil && img.UID == prune.ImageUID {
			continue
		}
		gone[plan.KeyForPrune(prune)] = v1alpha1.ReportedPrune{
			ImageUID:    prune.ImageUID,
			PruneStatus: v1alpha1.PruneStatus{UID: prune.UID, State: v1alpha1.PrunePruned},
		}
	}
	return gone, nil
}
