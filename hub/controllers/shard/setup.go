package shard

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// linkDelay is how long changes of MemberLinks are gathered before the fleet is decided about.
const linkDelay = time.Second

// Setup adds the controller to a manager.
func (a *Assigner) Setup(mgr ctrl.Manager) error {
	a.Peers.OnChange(func() { a.requests.Enqueue(fleetRequest) })
	a.Replica.OnLeaseChange(func() { a.requests.Enqueue(fleetRequest) })
	a.Reports.OnSynced(func() { a.requests.Enqueue(fleetRequest) })
	always := trigger.Always(fleetRequest)
	// When replicas connect, each of their MemberLinks changes: one decision is about many.
	gathered := trigger.After(func(client.Object) (reconcile.Request, time.Duration) { return fleetRequest, linkDelay })
	// Of a status, only whether a replica reaches its members matters.
	relevantChange := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld, e.ObjectNew
		return before.GetGeneration() != after.GetGeneration() || before.GetUID() != after.GetUID() ||
			before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero() ||
			!maps.Equal(before.GetLabels(), after.GetLabels()) || !slices.Equal(before.GetFinalizers(), after.GetFinalizers()) ||
			reachOfLink(before) != reachOfLink(after)
	}}
	return ctrl.NewControllerManagedBy(mgr).
		Named("shard").
		Watches(&v1alpha1.MemberCluster{}, always, builder.WithPredicates(relevantChange)).
		Watches(&v1alpha1.MemberLink{}, gathered, builder.WithPredicates(relevantChange)).
		Watches(&corev1.Namespace{}, always, builder.WithPredicates(relevantChange)).
		WatchesRawSource(&a.requests).
		WithOptions(controller.Options{RateLimiter: trigger.NewRateLimiter()}).
		Complete(a)
}

// linkReach is what a MemberLink says of its replica.
type linkReach struct {
	carrier                       string
	known, reachable, unreachable bool
}

func reachOfLink(o client.Object) linkReach {
	link, ok := o.(*v1alpha1.MemberLink)
	if !ok {
		return linkReach{}
	}
	return linkReach{link.Status.Carrier, link.Status.Known, link.Status.Reachable, link.Status.Reason == v1alpha1.ReasonUnreachable}
}
