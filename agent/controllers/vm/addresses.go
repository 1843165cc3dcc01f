package vm

import (
	"cmp"
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
	return vm.FindAddressConflict(obj, func(key string) ([]v1alpha1.VirtualMachine, error) {
		var list v1alpha1.VirtualMachineList
		if err := r.List(ctx, &list, client.MatchingFields{vm.AddressIndex: key}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing VirtualMachines by address: %w", err)
		}
		return list.Items, nil
	})
}

// addressEventHandler enqueues the younger machines that have an address of a machine when it takes
// that address or gives it up. Older ones keep theirs: if all were enqueued, n machines with the
// same addresses would cost n reconciles for each one that is created, and each reads a list of n.
func (r *Reconciler) addressEventHandler() handler.EventHandler {
	enqueue := func(ctx context.Context, before, after *v1alpha1.VirtualMachine, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		changed := cmp.Or(after, before)
		for _, key := range vm.ChangedAddressKeys(before, after) {
			for _, req := range r.requestsWhere(ctx, client.MatchingFields{vm.AddressIndex: key}, func(other *v1alpha1.VirtualMachine) bool { return vm.MayLoseAddressTo(other, changed) }) {
				q.Add(req)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if !e.IsInInitialList { // all machines of that list are enqueued
				enqueue(ctx, nil, e.Object.(*v1alpha1.VirtualMachine), q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			before, after := e.ObjectOld.(*v1alpha1.VirtualMachine), e.ObjectNew.(*v1alpha1.VirtualMachine)
			if before.UID != after.UID { // after a relist, one update event covers both objects
				enqueue(ctx, before, nil, q)
				before = nil
			}
			enqueue(ctx, before, after, q)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object.(*v1alpha1.VirtualMachine), nil, q)
		},
	}
}
