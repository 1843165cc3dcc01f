package planner

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// maxConcurrentReconciles of members; none of them waits for a member.
const maxConcurrentReconciles = 8

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	enqueue := func(member string) {
		r.requests.Enqueue(ctrl.Request{NamespacedName: types.NamespacedName{Name: member}})
	}
	enqueueAll := func() {
		var list v1alpha1.MemberClusterList
		if err := r.List(context.Background(), &list, client.UnsafeDisableDeepCopy); err != nil {
			log.Log.Error(err, "Failed to list MemberClusters; their plans are not updated until the next event")
		}
		for i := range list.Items {
			enqueue(list.Items[i].Name)
		}
	}
	r.Reports.OnChange(enqueue)
	r.Reports.OnSynced(enqueueAll)
	r.CredentialProblems.OnChange(enqueue)
	r.Rotations.OnChange(enqueue)
	r.Watchdog.OnChange(enqueue)
	r.Registrations.OnChange(enqueue)
	r.Installs.OnChange(enqueue)
	r.Policy.OnChange(enqueueAll)
	r.Images.OnDesiredChange(enqueue)
	r.Requests.OnRequestsChange(enqueue)
	r.Shares.OnChange(enqueue)

	// Updates of the status by this controller are no reason to reconcile.
	specChanged := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
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
		For(&v1alpha1.MemberCluster{}, builder.WithPredicates(specChanged)).
		Watches(&v1alpha1.ClusterPlan{}, mailbox).
		Watches(&v1alpha1.TransferGrant{}, mailbox).
		Watches(&v1alpha1.MemberLink{}, mailbox).
		Watches(&corev1.Namespace{}, namespace).
		Watches(&v1alpha1.MemberCluster{}, handler.EnqueueRequestsFromMapFunc(r.mapToCompetingMembers), builder.WithPredicates(claimChanged())).
		WatchesRawSource(&r.requests).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: maxConcurrentReconciles,
			RateLimiter:             trigger.NewRateLimiter(),
		}).
		Complete(r)
}

// claimChanged selects changes that give a cluster to another member, or take it.
func claimChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, // a new member has no cluster yet; after a start all members are reconciled
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, okBefore := e.ObjectOld.(*v1alpha1.MemberCluster)
			after, okAfter := e.ObjectNew.(*v1alpha1.MemberCluster)
			return okBefore && okAfter && (before.Status.ClusterUID != after.Status.ClusterUID || memberstatus.ClaimedCluster(before) != memberstatus.ClaimedCluster(after) ||
				before.Spec.AgentNamespace != after.Spec.AgentNamespace)
		},
	}
}

// mapToCompetingMembers returns the members that lead to the cluster of another one.
func (r *Reconciler) mapToCompetingMembers(ctx context.Context, o client.Object) (requests []reconcile.Request) {
	changed, ok := o.(*v1alpha1.MemberCluster)
	var list v1alpha1.MemberClusterList
	if err := r.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil || !ok {
		log.FromContext(ctx).Error(err, "Failed to list MemberClusters; members with the same cluster are not updated until the next event")
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
	if member, ok := report.MemberForNamespace(name); ok {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: member}}}
	}
	return nil
}
