package imageprune

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/admissionpolicy"
	"github.com/pelotech/ot-fleet/hub/controllers/prunereport"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
	"github.com/pelotech/ot-fleet/hub/prune"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// gatherAndDecide decides on an ImagePrune, and reads the pages of its report where the
// decision needs them.
func (r *Reconciler) gatherAndDecide(ctx context.Context, stored *v1alpha1.ImagePrune) (v prune.PruneView, d prune.PruneDecision, err error) {
	if v, err = r.gatherView(ctx, stored); err != nil {
		return v, d, err
	}
	if stored.Status.Phase == "" {
		// Read live: the policy may have gone just before the ImagePrune was created.
		if v.ApprovalGuarded, err = r.Approvals.CheckPolicy(ctx, admissionpolicy.PrunesPolicy); err != nil {
			return v, d, err
		}
	}
	if t := r.cachedTargets(stored); t != nil {
		t.addTo(&v)
	}
	d = prune.Decide(v)
	if !d.LoadPages || v.TargetsLoaded {
		return v, d, nil
	}
	t, err := r.loadTargets(ctx, stored, v.Report)
	if err != nil {
		return v, d, err
	}
	r.cacheTargets(stored.Name, t)
	t.addTo(&v)
	return v, prune.Decide(v), nil
}

// gatherView returns the view of an ImagePrune without its targets.
func (r *Reconciler) gatherView(ctx context.Context, stored *v1alpha1.ImagePrune) (v prune.PruneView, err error) {
	v = prune.PruneView{Now: time.Now(), Prune: stored, Members: map[string]prune.Member{}}
	if v.Report, err = prunereport.GetStored(ctx, r.Live, stored.Spec.ReportRef.Name); err != nil {
		return v, err
	}
	var members v1alpha1.MemberClusterList
	if err := r.List(ctx, &members, client.UnsafeDisableDeepCopy); err != nil {
		return v, fmt.Errorf("listing MemberClusters: %w", err)
	}
	reporting := make(map[string]types.UID, len(members.Items))
	for i := range members.Items {
		m := &members.Items[i]
		if !m.DeletionTimestamp.IsZero() {
			continue
		}
		offline, _ := rollout.Availability(m)
		reporting[m.Name] = r.Roots.Root(m.Name).ClusterUID
		v.Members[m.Name] = prune.Member{
			ClusterUID: memberstatus.ResolveClusterUID(m, reporting[m.Name]), OfflineReason: offline,
			IsSilent: !meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionAgentHealthy),
		}
	}
	v.Reported = func(t prune.Target) (v1alpha1.PruneStatus, bool) {
		if reporting[t.Cluster] != t.ClusterUID {
			return v1alpha1.PruneStatus{}, false // another cluster reports under this name
		}
		return r.Tracker.Reported(t.Cluster, stored.UID, imageName(t), t.UID)
	}
	v.HeldReason = func(t prune.Target) string {
		return r.Tracker.HeldReason(stored.UID, t.Cluster, imageName(t), t.UID)
	}
	return v, nil
}

func imageName(t prune.Target) types.NamespacedName {
	return types.NamespacedName{Namespace: t.Namespace, Name: t.Name}
}
