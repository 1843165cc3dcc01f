package grant

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

// fleetRequest is the only request of the queue.
var fleetRequest = reconcile.Request{NamespacedName: types.NamespacedName{Name: "fleet"}}

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	look := func() { r.requests.Enqueue(fleetRequest) }
	r.Reports.OnChange(func(string) { look() })
	r.Reports.OnSynced(look)
	r.Policy.OnChange(look)
	look()
	always := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{fleetRequest}
	})
	// Writes of others are found by the next write.
	deleted := predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(event.UpdateEvent) bool { return false },
		DeleteFunc: func(e event.DeleteEvent) bool {
			member, ok := report.MemberForNamespace(e.Object.GetNamespace())
			r.mu.Lock()
			defer r.mu.Unlock()
			r.deletedGrants = append(r.deletedGrants, member)
			return ok
		},
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("grant").
		Watches(&v1alpha1.MemberCluster{}, always).
		Watches(&v1alpha1.MemberLink{}, always).
		Watches(&v1alpha1.ClusterPlan{}, always).
		Watches(&corev1.Namespace{}, always).
		Watches(&v1alpha1.TransferGrant{}, always, builder.WithPredicates(deleted)).
		WatchesRawSource(&r.requests).
		Complete(r)
}

func sortedKeys(m map[string]int32) []string { return slices.Sorted(maps.Keys(m)) }
