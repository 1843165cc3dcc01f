package plan

import (
	"context"
	"maps"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Setup adds the controller to a manager. Every event leads to the one request, for the one
// plan.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	r.applied = map[plan.Key]plan.AppliedState{}
	r.backoffs = map[plan.Key]itemBackoff{}
	enqueue := trigger.Always(r.request())
	err := ctrl.NewControllerManagedBy(mgr).
		Named("plan").
		Watches(&v1alpha1.VMDiskImage{}, enqueue, builder.WithPredicates(r.namedImagePredicate())).
		Watches(&v1alpha1.SyncLedger{}, enqueue, builder.WithPredicates(planAcknowledgedPredicate())).
		WatchesRawSource(&r.triggers).
		WithOptions(controller.Options{RateLimiter: trigger.NewRateLimiter()}).
		Complete(reconcile.Func(r.reconcileWhenServed))
	if err != nil {
		return err
	}
	r.Kinds.WhenServed(plan.Kind, func(ctx context.Context) error {
		if err := apidiscovery.NotifyOnEvents(ctx, r.Mailbox, &v1alpha1.ClusterPlan{}, r.Enqueue); err != nil {
			return err
		}
		r.served.Store(true)
		r.Enqueue()
		return nil
	})
	return nil
}

// reconcileWhenServed does nothing until ClusterPlans are served, which requeues the plan.
func (r *Reconciler) reconcileWhenServed(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if !r.served.Load() {
		return reconcile.Result{}, nil
	}
	return r.Reconcile(ctx, request)
}

func (r *Reconciler) request() reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.MailboxName}}
}

// Enqueue requeues the plan.
func (r *Reconciler) Enqueue() { r.triggers.Enqueue(r.request()) }

// namedImagePredicate passes the events after which a planned image may differ from the
// plan, and after which a pruned image may be gone.
func (r *Reconciler) namedImagePredicate() predicate.Predicate {
	roleOf := func(o client.Object) imageRole {
		roles := r.namedImages.Load()
		if roles == nil {
			return 0
		}
		return (*roles)[plan.Key{Namespace: o.GetNamespace(), Name: o.GetName()}]
	}
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return roleOf(e.Object) != 0 },
		DeleteFunc: func(e event.DeleteEvent) bool { return roleOf(e.Object) != 0 },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld, e.ObjectNew
			role := roleOf(after)
			if before.GetUID() != after.GetUID() {
				return role != 0
			}
			return role&rolePlanned != 0 && (before.GetGeneration() != after.GetGeneration() ||
				!maps.Equal(before.GetLabels(), after.GetLabels()) || (before.GetDeletionTimestamp() == nil) != (after.GetDeletionTimestamp() == nil))
		},
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// planAcknowledgedPredicate passes the events after which another plan may apply.
func planAcknowledgedPredicate() predicate.Predicate {
	acknowledged := func(o client.Object) v1alpha1.PlanVersion {
		if ledger, ok := o.(*v1alpha1.SyncLedger); ok && ledger.Status != nil && ledger.Status.Plan != nil {
			return *ledger.Status.Plan
		}
		return v1alpha1.PlanVersion{}
	}
	return predicate.Funcs{
		UpdateFunc:  func(e event.UpdateEvent) bool { return acknowledged(e.ObjectOld) != acknowledged(e.ObjectNew) },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
