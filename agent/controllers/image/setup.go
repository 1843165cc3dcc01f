package image

import (
	"context"
	"slices"
	"strconv"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxConcurrentReconciles look after images at a time.
const maxConcurrentReconciles = 4

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(ctx context.Context, mgr ctrl.Manager) error {
	r.enqueued = make(chan event.GenericEvent, 1024)
	r.arrivals = arrivalTracker{index: r.Queue, reader: mgr.GetCache(), byUID: map[types.UID]arrivalRecord{}}
	child := handler.EnqueueRequestsFromMapFunc(r.mapChildToImage)
	c, err := ctrl.NewControllerManagedBy(mgr).
		Named("image").
		Watches(&v1alpha1.VMDiskImage{}, r.imageEventHandler()).
		Watches(&v1alpha1.SyncLedger{}, slotEventHandler()).
		Watches(&v1alpha1.VirtualMachine{}, handler.EnqueueRequestsFromMapFunc(mapVMToImages), builder.WithPredicates(holdChangedPredicate())).
		Watches(&corev1.PersistentVolumeClaim{}, child).
		Watches(&corev1.Pod{}, child).
		Watches(&storagev1.StorageClass{}, handler.EnqueueRequestsFromMapFunc(r.mapToSkippedImages)).
		WatchesRawSource(source.Channel(r.enqueued, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: maxConcurrentReconciles}).
		Build(r)
	if err != nil {
		return err
	}
	for _, obj := range []client.Object{&corev1.PersistentVolumeClaim{}, &corev1.Pod{}} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, obj, image.ImageUIDIndex, indexImageUID); err != nil {
			return err
		}
	}
	r.Kinds.WhenServed(image.DataVolumeGVK, r.watchWhenServed(mgr, c, func() client.Object { return &cdiv1.DataVolume{} }, child))
	r.Kinds.WhenServed(image.VolumeSnapshotGVK, r.watchWhenServed(mgr, c, func() client.Object { return &snapshotv1.VolumeSnapshot{} }, child))
	if r.Room != nil {
		if err := mgr.Add(manager.RunnableFunc(r.pollCapacity)); err != nil {
			return err
		}
	}
	return r.setupLateSnapshotController(mgr)
}

// watchWhenServed watches a kind once it is served, and has all images looked at again
// that waited for it.
func (r *Reconciler) watchWhenServed(mgr ctrl.Manager, c controller.Controller, obj func() client.Object, child handler.EventHandler) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := mgr.GetFieldIndexer().IndexField(ctx, obj(), image.ImageUIDIndex, indexImageUID); err != nil {
			return err
		}
		if err := apidiscovery.Watch(ctx, c, mgr.GetCache(), obj(), child); err != nil {
			return err
		}
		r.EnqueueUnready(ctx)
		return nil
	}
}

func indexImageUID(o client.Object) []string {
	if uid := o.GetLabels()[v1alpha1.LabelImageUID]; uid != "" {
		return []string{uid}
	}
	return nil
}

// mapVMToImages are the images that a machine holds. Of a change both what it held and
// what it holds is asked for.
func mapVMToImages(_ context.Context, o client.Object) []reconcile.Request {
	machine := o.(*v1alpha1.VirtualMachine)
	held := []reconcile.Request{{NamespacedName: machine.ImageNamespacedName()}}
	if p := machine.Status.Pinned; p != nil && (p.Namespace != machine.ImageNamespacedName().Namespace || p.Name != machine.ImageNamespacedName().Name) {
		held = append(held, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}})
	}
	return held
}

// mapChildToImage finds the image of a child by its UID.
func (r *Reconciler) mapChildToImage(_ context.Context, o client.Object) []reconcile.Request {
	if key, known := r.arrivals.nameForUID(types.UID(o.GetLabels()[v1alpha1.LabelImageUID])); known {
		return []reconcile.Request{{NamespacedName: key}}
	}
	return nil
}

// mapToSkippedImages are the images that wait for something of their own.
func (r *Reconciler) mapToSkippedImages(context.Context, client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, key := range r.Queue.ListKeys(ledger.Skipped) {
		requests = append(requests, reconcile.Request{NamespacedName: namespacedName(key)})
	}
	return requests
}

type requestQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// imageEventHandler keeps the queue as the images are. It does so before the image is
// looked at, in the order in which the events come: that is the order of
// arrival.
func (r *Reconciler) imageEventHandler() handler.EventHandler {
	seen := func(img *v1alpha1.VMDiskImage, q requestQueue) {
		r.propagateQueueChange(q, r.Queue.Set(ledger.QueuedImage{
			Image: image.KeyOf(img), Revision: img.Spec.Revision(), Key: r.arrivals.orderingKey(img),
			Priority: img.Spec.Priority, State: image.QueueStateOf(img), Since: time.Now(), Host: image.HostOf(img.Spec),
		}))
	}
	enqueue := func(o client.Object, q requestQueue) {
		q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q requestQueue) {
			r.arrivals.orderExistingImages(ctx)
			seen(e.Object.(*v1alpha1.VMDiskImage), q)
			enqueue(e.Object, q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q requestQueue) {
			r.arrivals.orderExistingImages(ctx)
			before, after := e.ObjectOld.(*v1alpha1.VMDiskImage), e.ObjectNew.(*v1alpha1.VMDiskImage)
			if before.UID != after.UID {
				r.forgetImage(before, q)
			}
			seen(after, q)
			if outcomesFingerprint(before) != outcomesFingerprint(after) {
				r.EnqueueLedger()
			}
			enqueue(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q requestQueue) {
			r.forgetImage(e.Object.(*v1alpha1.VMDiskImage), q)
		},
	}
}

func (r *Reconciler) forgetImage(img *v1alpha1.VMDiskImage, q requestQueue) {
	r.propagateQueueChange(q, r.Queue.Remove(img.UID))
	r.arrivals.forgetImage(img.UID)
	r.ownWrites.forgetImage(img.UID)
	r.capacityWaiters.setWaiting(image.KeyOf(img), false)
	r.Preflight.Forget(img.UID)
	r.EnqueueLedger()
}

// propagateQueueChange passes on what a change of the queue means for others.
func (r *Reconciler) propagateQueueChange(q requestQueue, c ledger.QueueChange) {
	if c.HeadChanged {
		r.EnqueueLedger()
	}
	for _, key := range c.Advanced {
		q.AddAfter(reconcile.Request{NamespacedName: namespacedName(key)}, positionRefreshDelay)
	}
}

// positionRefreshDelay lets the images that get a slot go first: a place in the queue
// is only told, and those at its head may be out of it by then.
const positionRefreshDelay = 300 * time.Millisecond

// outcomesFingerprint sums up which outcomes an image holds.
func outcomesFingerprint(img *v1alpha1.VMDiskImage) (sum string) {
	for i := range img.Status.Revisions {
		e := &img.Status.Revisions[i]
		sum += e.Revision + ":" + strconv.Itoa(int(e.AttemptEnded)) + string(e.Outcome) + " "
	}
	return sum
}

// slotEventHandler has those images looked at whose slots changed.
func slotEventHandler() handler.EventHandler {
	slots := func(o client.Object) []v1alpha1.Slot {
		if l := o.(*v1alpha1.SyncLedger); l.Status != nil {
			return l.Status.Slots
		}
		return nil
	}
	enqueue := func(q requestQueue, these, others []v1alpha1.Slot) {
		for _, s := range these {
			if !slices.Contains(others, s) {
				q.Add(reconcile.Request{NamespacedName: namespacedName(s.Image)})
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q requestQueue) { enqueue(q, slots(e.Object), nil) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q requestQueue) {
			before, after := slots(e.ObjectOld), slots(e.ObjectNew)
			enqueue(q, before, after)
			enqueue(q, after, before)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q requestQueue) { enqueue(q, slots(e.Object), nil) },
	}
}
