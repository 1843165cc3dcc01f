package plan

import (
	"context"
	"maps"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Setup adds the controller to a manager. There is one request, for the one
// plan.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	r.applied = map[plan.Key]plan.AppliedState{}
	r.backoffs = map[plan.Key]itemBackoff{}
	r.triggers = make(chan event.GenericEvent, 1)
	request := []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.MailboxName}}}
	whole := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return request })
	served := reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		if !r.served.Load() {
			return reconcile.Result{}, nil // it is poked when it is
		}
		return r.Reconcile(ctx, request)
	})
	err := ctrl.NewControllerManagedBy(mgr).
		Named("plan").
		Watches(&v1alpha1.VMDiskImage{}, whole, builder.WithPredicates(r.namedImagePredicate())).
		Watches(&v1alpha1.SyncLedger{}, whole, builder.WithPredicates(planAcknowledgedPredicate())).
		WatchesRawSource(source.Channel(r.triggers, whole)).
		Complete(served)
	if err != nil {
		return err
	}
	r.Kinds.WhenServed(plan.Kind, func(ctx context.Context) error {
		if err := apidiscovery.NotifyOnEvents(ctx, r.Mailbox, &v1alpha1.ClusterPlan{}, r.enqueue); err != nil {
			return err
		}
		r.served.Store(true)
		r.enqueue()
		return nil
	})
	return nil
}

// enqueue has the plan looked at again. It never blocks: one poke that is not taken
// yet stands for all.
func (r *Reconciler) enqueue() {
	select {
	case r.triggers <- event.GenericEvent{}:
	default:
	}
}

// namedImagePredicate are the events by which an image can come to differ from the
// plan, of the images that the plan names: of one that it prunes, that it is gone.
func (r *Reconciler) namedImagePredicate() predicate.Predicate {
	roleOf := func(o client.Object) imageRole {
		names := r.namedImages.Load()
		if names == nil {
			return 0
		}
		return (*names)[plan.Key{Namespace: o.GetNamespace(), Name: o.GetName()}]
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

// planAcknowledgedPredicate are the events by which another plan may be gone by.
func planAcknowledgedPredicate() predicate.Predicate {
	version := func(o client.Object) v1alpha1.PlanVersion {
		if ledger, is := o.(*v1alpha1.SyncLedger); is && ledger.Status != nil && ledger.Status.Plan != nil {
			return *ledger.Status.Plan
		}
		return v1alpha1.PlanVersion{}
	}
	return predicate.Funcs{
		UpdateFunc:  func(e event.UpdateEvent) bool { return version(e.ObjectOld) != version(e.ObjectNew) },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
