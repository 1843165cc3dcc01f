package vm

import (
	"context"
	"fmt"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// findAddressConflict looks for machines of the namespace that have an address of a machine.
func (r *Reconciler) findAddressConflict(ctx context.Context, obj *v1alpha1.VirtualMachine) (string, error) {
	var others []v1alpha1.VirtualMachine
	for _, key := range vm.AddressKeys(obj) {
		var list v1alpha1.VirtualMachineList
		if err := r.List(ctx, &list, client.MatchingFields{vm.AddressIndex: key}, client.UnsafeDisableDeepCopy); err != nil {
			return "", fmt.Errorf("listing VirtualMachines by address: %w", err)
		}
		others = append(others, list.Items...)
	}
	return vm.FindAddressConflict(obj, others), nil
}

// addressEventHandler enqueues the other machines that have an address of a machine when its
// spec changes or it goes.
func (r *Reconciler) addressEventHandler() handler.EventHandler {
	enqueue := func(ctx context.Context, o client.Object, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		for _, key := range vm.AddressKeys(o.(*v1alpha1.VirtualMachine)) {
			for _, req := range r.requestsWhere(ctx, client.MatchingFields{vm.AddressIndex: key}, func(other *v1alpha1.VirtualMachine) bool { return other.UID != o.GetUID() }) {
				q.Add(req)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero() {
				enqueue(ctx, e.ObjectOld, q)
				enqueue(ctx, e.ObjectNew, q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, q)
		},
	}
}
