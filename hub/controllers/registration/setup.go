package registration

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

// maxConcurrentReconciles is how many members are reconciled at a time.
const maxConcurrentReconciles = 4

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	request := func(member string, ok bool) []reconcile.Request {
		if !ok {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: member}}}
	}
	byNamespace := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		if ns, ok := o.(*corev1.Namespace); ok {
			return request(report.MemberForNamespace(ns.Name))
		}
		return request(report.MemberForNamespace(o.GetNamespace()))
	})
	bySecret := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return request(registration.MemberOfJoinSecret(o.GetName()))
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("join").
		For(&v1alpha1.MemberCluster{}, builder.WithPredicates(registrationChanged())).
		Watches(&v1alpha1.ClusterJoin{}, byNamespace).
		Watches(&corev1.Namespace{}, byNamespace).
		Watches(&corev1.Secret{}, bySecret, builder.OnlyMetadata).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: maxConcurrentReconciles,
			RateLimiter:             trigger.NewRateLimiter(),
		}).
		Complete(r)
}

// registrationChanged passes updates that matter for registration. Of the status, those
// are the cluster UID, and that condition Joined no longer has reason Revoked.
func registrationChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, oldOK := e.ObjectOld.(*v1alpha1.MemberCluster)
		after, newOK := e.ObjectNew.(*v1alpha1.MemberCluster)
		return oldOK && newOK && (before.Generation != after.Generation || before.UID != after.UID ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
			before.Status.ClusterUID != after.Status.ClusterUID ||
			(joinedReason(before) == v1alpha1.ReasonRevoked) != (joinedReason(after) == v1alpha1.ReasonRevoked) ||
			!slices.Equal(before.Finalizers, after.Finalizers) || !maps.Equal(before.Annotations, after.Annotations))
	}}
}
