package plan

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// findPrunedImages are the prunes of a plan whose image is not there any more, whoever has
// deleted it: nobody else is left to tell of them. The cache tells; it is complete
// before any controller runs. One of that name that was made since is another image.
func (r *Reconciler) findPrunedImages(ctx context.Context, prunes []v1alpha1.PlannedPrune) (map[plan.Key]v1alpha1.ReportedPrune, error) {
	found := map[plan.Key]v1alpha1.ReportedPrune{}
	for i := range prunes {
		prune := &prunes[i]
		img := &v1alpha1.VMDiskImage{}
		err := r.Get(ctx, types.NamespacedName{Namespace: prune.Namespace, Name: prune.Name}, img, client.UnsafeDisableDeepCopy)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("looking whether VMDiskImage %s/%s is pruned: %w", prune.Namespace, prune.Name, err)
		}
		if err == nil && img.UID == prune.ImageUID {
			continue
		}
		found[plan.KeyForPrune(prune)] = v1alpha1.ReportedPrune{
			ImageUID:    prune.ImageUID,
			PruneStatus: v1alpha1.PruneStatus{UID: prune.UID, State: v1alpha1.PrunePruned},
		}
	}
	return found, nil
}
