package shard

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Setup adds the controller to a manager.
func (a *Assigner) Setup(mgr ctrl.Manager) error {
	a.Peers.OnChange(func() { a.again.Poke(everything) })
	a.Replica.OnCarries(func() { a.again.Poke(everything) })
	always := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{everything}
	})
	// A status is no reason to look again.
	asked := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld, e.ObjectNew
		return before.GetGeneration() != after.GetGeneration() || before.GetUID() != after.GetUID() ||
			before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero() ||
			!maps.Equal(before.GetLabels(), after.GetLabels()) || !slices.Equal(before.GetFinalizers(), after.GetFinalizers())
	}}
	return ctrl.NewControllerManagedBy(mgr).
		Named("shard").
		Watches(&v1alpha1.MemberCluster{}, always, builder.WithPredicates(asked)).
		Watches(&v1alpha1.MemberLink{}, always, builder.WithPredicates(asked)).
		Watches(&corev1.Namespace{}, always, builder.WithPredicates(asked)).
		WatchesRawSource(&a.again).
		Complete(a)
}
