package member

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

// workers look after members at a time; none of them ever waits for a member.
const workers = 8

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	one := func(member string) {
		r.again.Poke(ctrl.Request{NamespacedName: types.NamespacedName{Name: member}})
	}
	all := func() {
		var list v1alpha1.MemberClusterList
		if err := r.List(context.Background(), &list, client.UnsafeDisableDeepCopy); err != nil {
			log.Log.Error(err, "Listing MemberClusters to look at them all")
		}
		for i := range list.Items {
			one(list.Items[i].Name)
		}
	}
	r.Reports.OnChange(one)
	r.Reports.OnFilled(all)
	r.Relays.OnChange(one)
	r.Members.OnChange(one)
	r.Policy.OnChange(all)

	// What this controller writes itself, the status, is no reason to look again.
	asked := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld, e.ObjectNew
		return before.GetGeneration() != after.GetGeneration() || before.GetUID() != after.GetUID() ||
			before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero() ||
			!maps.Equal(before.GetLabels(), after.GetLabels()) || !maps.Equal(before.GetAnnotations(), after.GetAnnotations())
	}}
	mailbox := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return ofNamespace(o.GetNamespace())
	})
	namespace := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return ofNamespace(o.GetName())
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("member").
		For(&v1alpha1.MemberCluster{}, builder.WithPredicates(asked)).
		Watches(&v1alpha1.ClusterPlan{}, mailbox).
		Watches(&v1alpha1.TransferGrant{}, mailbox).
		Watches(&corev1.Namespace{}, namespace).
		WatchesRawSource(&r.again).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](leastBackoff, mostBackoff),
		}).
		Complete(r)
}

func ofNamespace(name string) []reconcile.Request {
	if member, is := report.MemberOf(name); is {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: member}}}
	}
	return nil
}
