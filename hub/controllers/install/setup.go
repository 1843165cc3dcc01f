package install

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
)

const (
	// maxConcurrentReconciles of members: one that hangs occupies a worker until its
	// requests time out.
	maxConcurrentReconciles = 16
	// maxConcurrentInstalls is the number of install slots.
	maxConcurrentInstalls = 4
)

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	r.installSlots = make(chan struct{}, maxConcurrentInstalls)
	r.Conditions.enabled.Store(true)
	relevantChange := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, okBefore := e.ObjectOld.(*v1alpha1.MemberCluster)
		after, okAfter := e.ObjectNew.(*v1alpha1.MemberCluster)
		return okBefore && okAfter && (before.Generation != after.Generation || before.UID != after.UID ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
			before.Status.AgentVersion != after.Status.AgentVersion || before.Status.ClusterUID != after.Status.ClusterUID ||
			isReachable(before) != isReachable(after) || // one that has come back does not wait for its backoff
			!maps.Equal(before.Labels, after.Labels) || !maps.Equal(before.Annotations, after.Annotations))
	}}
	return ctrl.NewControllerManagedBy(mgr).
		Named("install").
		For(&v1alpha1.MemberCluster{}, builder.WithPredicates(relevantChange)).
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(r.mapValuesToMembers)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: maxConcurrentReconciles,
			RateLimiter:             trigger.NewRateLimiter(),
		}).
		Complete(r)
}

func isReachable(member *v1alpha1.MemberCluster) bool {
	return meta.IsStatusConditionTrue(member.Status.Conditions, v1alpha1.ConditionReachable)
}

// mapValuesToMembers returns the members whose values a ConfigMap has.
func (r *Reconciler) mapValuesToMembers(ctx context.Context, o client.Object) (requests []reconcile.Request) {
	if o.GetNamespace() != r.Namespace {
		return nil
	}
	member, all, ok := parseValuesName(o.GetName())
	switch {
	case !ok:
		return nil
	case !all:
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: member}}}
	}
	var list v1alpha1.MemberClusterList
	if err := r.List(ctx, &list, client.MatchingLabels{v1alpha1.LabelInstallAgent: "true"}, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Failed to list MemberClusters; changed values of ot-agent are installed once something else of a member changes", "configMap", o.GetName())
	}
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: list.Items[i].Name}})
	}
	return requests
}
