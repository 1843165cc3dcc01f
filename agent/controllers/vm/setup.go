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

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/kinds"
	"github.com/pelotech/ot-fleet/agent/machine"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// workers look after machines at a time.
const workers = 8

// backoff repeats what failed after 5 ms, then after twice as long each time, up to
// half a minute: a webhook that is up again is not to be waited for longer.
func backoff() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, 30*time.Second)
}

// uidIndex is the field index of VirtualMachines by their UID.
const uidIndex = "uid"

// Setup adds the controller to a manager. made is the cache behind r.Made.
func (r *Reconciler) Setup(ctx context.Context, mgr ctrl.Manager, made cache.Cache) error {
	r.again = make(chan event.GenericEvent, 1024)
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.VirtualMachine{}, uidIndex, func(o client.Object) []string {
		return []string{string(o.GetUID())}
	}); err != nil {
		return err
	}
	ofMade := handler.EnqueueRequestsFromMapFunc(r.ofMade)
	c, err := ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachine").
		For(&v1alpha1.VirtualMachine{}).
		Watches(&v1alpha1.VMDiskImage{}, r.ofImage()).
		WatchesRawSource(source.Kind(made, client.Object(&corev1.PersistentVolumeClaim{}), ofMade)).
		WatchesRawSource(source.Channel(r.again, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, RateLimiter: backoff()}).
		Build(r)
	if err != nil {
		return err
	}
	watch := func(obj client.Object) func(context.Context) error {
		return func(ctx context.Context) error {
			if err := kinds.Watch(ctx, c, made, obj, ofMade); err != nil {
				return err
			}
			return r.refreshAll(ctx)
		}
	}
	theirs := &unstructured.Unstructured{}
	theirs.SetGroupVersionKind(machine.Kind)
	r.Kinds.WhenServed(image.DataVolumeKind, watch(&cdiv1.DataVolume{}))
	r.Kinds.WhenServed(machine.Kind, watch(theirs))
	return nil
}

// ofMade finds the machine that something was made for, by its UID.
func (r *Reconciler) ofMade(ctx context.Context, o client.Object) []reconcile.Request {
	return r.find(ctx, client.MatchingFields{uidIndex: o.GetLabels()[v1alpha1.LabelMachineUID]})
}

func (r *Reconciler) find(ctx context.Context, match client.ListOption) []reconcile.Request {
	return r.findThose(ctx, match, func(*v1alpha1.VirtualMachine) bool { return true })
}

// findThose copies none of the machines: they can be many and are only read.
func (r *Reconciler) findThose(ctx context.Context, match client.ListOption, wanted func(*v1alpha1.VirtualMachine) bool) []reconcile.Request {
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

// refreshAll has all machines looked at again.
func (r *Reconciler) refreshAll(ctx context.Context) error {
	var machines v1alpha1.VirtualMachineList
	if err := r.List(ctx, &machines, client.UnsafeDisableDeepCopy); err != nil { // only their names are read
		return err
	}
	go func() {
		for i := range machines.Items {
			select {
			case <-ctx.Done():
				return
			case r.again <- event.GenericEvent{Object: &machines.Items[i]}:
			}
		}
	}()
	return nil
}
