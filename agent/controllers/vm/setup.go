package vm

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/workqueue"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxConcurrentReconciles look after machines at a time.
const maxConcurrentReconciles = 8

// newRateLimiter repeats what failed after 5 ms, then after twice as long each time, up to
// half a minute: a webhook that is up again is not to be waited for longer.
func newRateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, 30*time.Second)
}

// uidIndex is the field index of VirtualMachines by their UID.
const uidIndex = "uid"

// Setup adds the controller to a manager. made is the cache behind r.Made.
func (r *Reconciler) Setup(ctx context.Context, mgr ctrl.Manager, made cache.Cache) error {
	r.requeueEvents = make(chan event.GenericEvent, 1024)
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.VirtualMachine{}, uidIndex, func(o client.Object) []string {
		return []string{string(o.GetUID())}
	}); err != nil {
		return err
	}
	ofMade := handler.EnqueueRequestsFromMapFunc(r.requestsForOwned)
	c, err := ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachine").
		For(&v1alpha1.VirtualMachine{}).
		Watches(&v1alpha1.VMDiskImage{}, r.imageEventHandler()).
		WatchesRawSource(source.Kind(made, client.Object(&corev1.PersistentVolumeClaim{}), ofMade)).
		WatchesRawSource(source.Channel(r.requeueEvents, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: maxConcurrentReconciles, RateLimiter: newRateLimiter()}).
		Build(r)
	if err != nil {
		return err
	}
	watch := func(obj client.Object) func(context.Context) error {
		return func(ctx context.Context) error {
			if err := apidiscovery.Watch(ctx, c, made, obj, ofMade); err != nil {
				return err
			}
			return r.enqueueAll(ctx)
		}
	}
	theirs := &unstructured.Unstructured{}
	theirs.SetGroupVersionKind(kubevirt.VirtualMachineKind)
	r.Kinds.WhenServed(image.DataVolumeGVK, watch(&cdiv1.DataVolume{}))
	r.Kinds.WhenServed(kubevirt.VirtualMachineKind, watch(theirs))
	return nil
}

// requestsForOwned finds the machine that something was made for, by its UID.
func (r *Reconciler) requestsForOwned(ctx context.Context, o client.Object) []reconcile.Request {
	return r.requestsMatching(ctx, client.MatchingFields{uidIndex: o.GetLabels()[v1alpha1.LabelMachineUID]})
}

func (r *Reconciler) requestsMatching(ctx context.Context, match client.ListOption) []reconcile.Request {
	return r.requestsWhere(ctx, match, func(*v1alpha1.VirtualMachine) bool { return true })
}

// requestsWhere copies none of the machines: they can be many and are only read.
func (r *Reconciler) requestsWhere(ctx context.Context, match client.ListOption, wanted func(*v1alpha1.VirtualMachine) bool) []reconcile.Request {
	var machines v1alpha1.VirtualMachineList
	if err := r.List(ctx, &machines, match, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Finding the machines that an event concerns")
		return nil
	}
	var found []reconcile.Request
	for i := range machines.Items {
		if wanted(&machines.Items[i]) {
			found = append(found, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&machines.Items[i])})
		}
	}
	return found
}

// enqueueAll has all machines looked at again.
func (r *Reconciler) enqueueAll(ctx context.Context) error {
	var machines v1alpha1.VirtualMachineList
	if err := r.List(ctx, &machines, client.UnsafeDisableDeepCopy); err != nil { // only their names are read
		return err
	}
	go func() {
		for i := range machines.Items {
			select {
			case <-ctx.Done():
				return
			case r.requeueEvents <- event.GenericEvent{Object: &machines.Items[i]}:
			}
		}
	}()
	return nil
}
