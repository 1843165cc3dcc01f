package metrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var (
	rolloutClusters = newDesc("rollout_clusters", "Clusters that a FleetDiskImage is placed in, by the state of its current version.", "image", "state")
	rolloutPhase    = newDesc("rollout_phase", "1 for the rollout phase of a FleetDiskImage, 0 for the others.", "image", "phase")
)

var rolloutPhases = []v1alpha1.RolloutPhase{v1alpha1.RolloutProgressing, v1alpha1.RolloutWaiting, v1alpha1.RolloutSucceeded, v1alpha1.RolloutFailed}

// collectRollouts renders the status of FleetDiskImages. One without a status yet has no
// series.
func (f *FleetCollector) collectRollouts(ctx context.Context, gauge func(d *prometheus.Desc, value float64, labels ...string)) {
	var list v1alpha1.FleetDiskImageList
	if err := f.Reader.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Failed to list FleetDiskImages; their metrics are missing from this scrape")
		return
	}
	for i := range list.Items {
		name, st := list.Items[i].Name, &list.Items[i].Status
		if st.Phase == "" {
			continue
		}
		for _, phase := range rolloutPhases {
			gauge(rolloutPhase, boolValue(st.Phase == phase), name, string(phase))
		}
		for _, state := range v1alpha1.ClusterStates() {
			gauge(rolloutClusters, float64(*st.Clusters.CountOf(state)), name, string(state))
		}
	}
}
