package vm

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const maxConcurrentReconciles = 8

// Setup adds the controller to a manager. owned is the cache behind r.Owned.
func (r *Reconciler) Setup(ctx context.Context, mgr ctrl.Manager, owned cache.Cache) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.VirtualMachine{}, vm.UIDIndex, func(o client.Object) []string {
		return []string{string(o.GetUID())}
	}); err != nil {
		return err
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.VirtualMachine{}, vm.AddressIndex, func(o client.Object) []string {
		return vm.AddressKeys(o.(*v1alpha1.VirtualMachine))
	}); err != nil {
		return err
	}
	enqueueOwner := handler.EnqueueRequestsFromMapFunc(r.requestsForOwned)
	limiter := trigger.NewLatencyLimiter()
	c, err := ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachine").
		For(&v1alpha1.VirtualMachine{}).
		Watches(&v1alpha1.VMDiskImage{}, r.imageEventHandler()).
		Watches(&v1alpha1.VirtualMachine{}, r.addressEventHandler()).
		WatchesRawSource(source.Kind(owned, client.Object(&corev1.PersistentVolumeClaim{}), enqueueOwner)).
		WatchesRawSource(source.Kind(owned, client.Object(&corev1.Pod{}), enqueueOwner)).
		WatchesRawSource(&r.requests).
		WithOptions(controller.Options{MaxConcurrentReconciles: maxConcurrentReconciles, RateLimiter: limiter}).
		Build(limiter.Limit(r))
	if err != nil {
		return err
	}
	watchOwned := func(obj client.Object) func(context.Context) error {
		return func(ctx context.Context) error {
			if err := apidiscovery.Watch(ctx, c, owned, obj, enqueueOwner); err != nil {
				return err
			}
			return r.EnqueueAll(ctx)
		}
	}
	r.Kinds.WhenServed(image.DataVolumeGVK, watchOwned(&cdiv1.DataVolume{}))
	r.Kinds.WhenServed(kubevirt.VirtualMachineGVK, watchOwned(newKubeVirtVM()))
	return nil
}

// requestsForOwned returns the machine whose UID an object carries as a label.
func (r *Reconciler) requestsForOwned(ctx context.Context, o client.Object) []reconcile.Request {
	return r.requestsWhere(ctx, client.MatchingFields{vm.UIDIndex: o.GetLabels()[v1alpha1.LabelMachineUID]}, func(*v1alpha1.VirtualMachine) bool { return true })
}

// requestsWhere lists machines without copying them: there may be many.
func (r *Reconciler) requestsWhere(ctx context.Context, match client.ListOption, wanted func(*v1alpha1.VirtualMachine) bool) []reconcile.Request {
	var machines v1alpha1.VirtualMachineList
	if err := r.List(ctx, &machines, match, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the VirtualMachines that an event affects; skipping the event")
		return nil
	}
	var requests []reconcile.Request
	for i := range machines.Items {
		if wanted(&machines.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&machines.Items[i])})
		}
	}
	return requests
}

// EnqueueAll enqueues all machines.
func (r *Reconciler) EnqueueAll(ctx context.Context) error {
	var machines v1alpha1.VirtualMachineList
	if err := r.List(ctx, &machines, client.UnsafeDisableDeepCopy); err != nil { // only their names are read
		return err
	}
	for i := range machines.Items {
		r.requests.Enqueue(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&machines.Items[i])})
	}
	return nil
}
