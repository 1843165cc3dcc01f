package planner

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
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
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// maxConcurrentReconciles look after members at a time; none of them ever waits for a member.
const maxConcurrentReconciles = 8

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	one := func(member string) {
		r.requests.Enqueue(ctrl.Request{NamespacedName: types.NamespacedName{Name: member}})
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
	r.Reports.OnSynced(all)
	r.Faults.OnChange(one)
	r.Watchdog.OnChange(one)
	r.Joins.OnChange(one)
	r.Installs.OnChange(one)
	r.Policy.OnChange(all)
	r.Images.OnDesiredChange(one)
	r.Requests.OnRequestsChange(one)
	r.Shares.OnChange(one)

	// What this controller writes itself, the status, is no reason to look again.
	asked := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld, e.ObjectNew
		return before.GetGeneration() != after.GetGeneration() || before.GetUID() != after.GetUID() ||
			before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero() ||
			!maps.Equal(before.GetLabels(), after.GetLabels()) || !maps.Equal(before.GetAnnotations(), after.GetAnnotations())
	}}
	mailbox := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return requestsForNamespace(o.GetNamespace())
	})
	namespace := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return requestsForNamespace(o.GetName())
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("member").
		For(&v1alpha1.MemberCluster{}, builder.WithPredicates(asked)).
		Watches(&v1alpha1.ClusterPlan{}, mailbox).
		Watches(&v1alpha1.TransferGrant{}, mailbox).
		Watches(&v1alpha1.MemberLink{}, mailbox).
		Watches(&corev1.Namespace{}, namespace).
		Watches(&v1alpha1.MemberCluster{}, handler.EnqueueRequestsFromMapFunc(r.mapToCompetingMembers), builder.WithPredicates(claimChanged())).
		WatchesRawSource(&r.requests).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: maxConcurrentReconciles,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](minBackoff, maxBackoff),
		}).
		Complete(r)
}

// claimChanged lets through what gives other members a cluster, or takes it.
func claimChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, // it has none yet, or all are looked at
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, is := e.ObjectOld.(*v1alpha1.MemberCluster)
			after, too := e.ObjectNew.(*v1alpha1.MemberCluster)
			return is && too && (before.Status.ClusterUID != after.Status.ClusterUID || memberstatus.ClaimedCluster(before) != memberstatus.ClaimedCluster(after) ||
				before.Spec.AgentNamespace != after.Spec.AgentNamespace)
		},
	}
}

// mapToCompetingMembers are the members whose cluster is another's, or is recorded twice.
func (r *Reconciler) mapToCompetingMembers(ctx context.Context, o client.Object) (requests []reconcile.Request) {
	changed, is := o.(*v1alpha1.MemberCluster)
	var list v1alpha1.MemberClusterList
	if err := r.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil || !is {
		log.FromContext(ctx).Error(err, "Listing MemberClusters to look at those that lead to one cluster")
		return nil
	}
	for i := range list.Items {
		m := &list.Items[i]
		c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionIdentityConfirmed)
		waits := c != nil && c.Reason == v1alpha1.ReasonDuplicateCluster
		if m.Name != changed.Name && (waits || memberstatus.ClaimedCluster(changed) != "" && memberstatus.ClaimedCluster(m) == memberstatus.ClaimedCluster(changed)) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
		}
	}
	return requests
}

func requestsForNamespace(name string) []reconcile.Request {
	if member, is := report.MemberForNamespace(name); is {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: member}}}
	}
	return nil
}
