package grant

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

// fleetRequest is the only request of the queue.
var fleetRequest = reconcile.Request{NamespacedName: types.NamespacedName{Name: "fleet"}}

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	enqueue := func() { r.requests.Enqueue(fleetRequest) }
	r.Reports.OnChange(func(member string) {
		if r.limited.Load() || r.isOtherCluster(member) {
			enqueue()
		}
	})
	r.Reports.OnSynced(enqueue)
	r.Policy.OnChange(enqueue)
	enqueue()
	always := trigger.Always(fleetRequest)
	// Without a budget only grants without limits are written, which depend on neither
	// plans nor, but for a newer grant in the member, links.
	withBudget := predicate.NewPredicateFuncs(func(client.Object) bool { return r.limited.Load() })
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
		Watches(&v1alpha1.MemberCluster{}, always, builder.WithPredicates(memberChanged())).
		Watches(&v1alpha1.MemberLink{}, always, builder.WithPredicates(predicate.Or(withBudget, aheadGrantChanged()))).
		Watches(&v1alpha1.ClusterPlan{}, always, builder.WithPredicates(withBudget)).
		Watches(&corev1.Namespace{}, always).
		Watches(&v1alpha1.TransferGrant{}, always, builder.WithPredicates(deleted)).
		WatchesRawSource(&r.requests).
		WithOptions(controller.Options{RateLimiter: trigger.NewRateLimiter()}).
		Complete(r)
}

// memberChanged lets through what a share depends on: of the status only the cluster.
func memberChanged() predicate.Predicate {
	return predicate.Or[client.Object](predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}, trigger.Changed(func(m *v1alpha1.MemberCluster) string {
		return string(m.Status.ClusterUID)
	}))
}

// aheadGrantChanged lets through links of members that have a newer grant than the hub. A link's spec
// changes with each move of a member, which grants without limits do not depend on.
func aheadGrantChanged() predicate.Predicate {
	return trigger.SummaryChanged(func(l *v1alpha1.MemberLink) int64 { return l.Status.AheadGrant })
}
