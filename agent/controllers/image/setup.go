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

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/kinds"
	"github.com/pelotech/ot-fleet/agent/queue"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// workers look after images at a time.
const workers = 4

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(ctx context.Context, mgr ctrl.Manager) error {
	r.again = make(chan event.GenericEvent, 1024)
	r.arrivals = arrivals{index: r.Index, reader: mgr.GetCache(), known: map[types.UID]arrival{}}
	child := handler.EnqueueRequestsFromMapFunc(r.ofChild)
	c, err := ctrl.NewControllerManagedBy(mgr).
		Named("image").
		Watches(&v1alpha1.VMDiskImage{}, r.handler()).
		Watches(&v1alpha1.SyncLedger{}, ledgerHandler()).
		Watches(&v1alpha1.VirtualMachine{}, handler.EnqueueRequestsFromMapFunc(heldBy), builder.WithPredicates(holding())).
		Watches(&corev1.PersistentVolumeClaim{}, child).
		Watches(&corev1.Pod{}, child).
		Watches(&storagev1.StorageClass{}, handler.EnqueueRequestsFromMapFunc(r.skipped)).
		WatchesRawSource(source.Channel(r.again, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Build(r)
	if err != nil {
		return err
	}
	for _, obj := range []client.Object{&corev1.PersistentVolumeClaim{}, &corev1.Pod{}} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, obj, image.UIDIndex, uidOf); err != nil {
			return err
		}
	}
	r.Kinds.WhenServed(image.DataVolumeKind, r.takeUp(mgr, c, func() client.Object { return &cdiv1.DataVolume{} }, child))
	r.Kinds.WhenServed(image.VolumeSnapshotKind, r.takeUp(mgr, c, func() client.Object { return &snapshotv1.VolumeSnapshot{} }, child))
	if r.Room != nil {
		if err := mgr.Add(manager.RunnableFunc(r.followRoom)); err != nil {
			return err
		}
	}
	return r.removeLateSnapshots(mgr)
}

// takeUp watches a kind once it is served, and has all images looked at again
// that waited for it.
func (r *Reconciler) takeUp(mgr ctrl.Manager, c controller.Controller, obj func() client.Object, child handler.EventHandler) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := mgr.GetFieldIndexer().IndexField(ctx, obj(), image.UIDIndex, uidOf); err != nil {
			return err
		}
		if err := kinds.Watch(ctx, c, mgr.GetCache(), obj(), child); err != nil {
			return err
		}
		r.RefreshUnready(ctx)
		return nil
	}
}

func uidOf(o client.Object) []string {
	if uid := o.GetLabels()[v1alpha1.LabelImageUID]; uid != "" {
		return []string{uid}
	}
	return nil
}

// heldBy are the images that a machine holds. Of a change both what it held and
// what it holds is asked for.
func heldBy(_ context.Context, o client.Object) []reconcile.Request {
	machine := o.(*v1alpha1.VirtualMachine)
	held := []reconcile.Request{{NamespacedName: machine.ImageName()}}
	if p := machine.Status.Pinned; p != nil && (p.Namespace != machine.ImageName().Namespace || p.Name != machine.ImageName().Name) {
		held = append(held, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}})
	}
	return held
}

// ofChild finds the image of a child by its UID.
func (r *Reconciler) ofChild(_ context.Context, o client.Object) []reconcile.Request {
	if key, known := r.arrivals.name(types.UID(o.GetLabels()[v1alpha1.LabelImageUID])); known {
		return []reconcile.Request{{NamespacedName: key}}
	}
	return nil
}

// skipped are the images that wait for something of their own.
func (r *Reconciler) skipped(context.Context, client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, key := range r.Index.Keys(queue.Skipped) {
		requests = append(requests, reconcile.Request{NamespacedName: name(key)})
	}
	return requests
}

type requests = workqueue.TypedRateLimitingInterface[reconcile.Request]

// handler keeps the queue as the images are. It does so before the image is
// looked at, in the order in which the events come: that is the order of
// arrival.
func (r *Reconciler) handler() handler.EventHandler {
	seen := func(img *v1alpha1.VMDiskImage, q requests) {
		r.follow(q, r.Index.Set(queue.Item{
			Image: image.KeyOf(img), Revision: img.Spec.Revision(), Key: r.arrivals.key(img),
			Priority: img.Spec.Priority, Standing: image.StandingOf(img), Since: time.Now(), Host: image.HostOf(img.Spec),
		}))
	}
	enqueue := func(o client.Object, q requests) {
		q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q requests) {
			r.arrivals.begin(ctx)
			seen(e.Object.(*v1alpha1.VMDiskImage), q)
			enqueue(e.Object, q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q requests) {
			r.arrivals.begin(ctx)
			before, after := e.ObjectOld.(*v1alpha1.VMDiskImage), e.ObjectNew.(*v1alpha1.VMDiskImage)
			if before.UID != after.UID {
				r.forget(before, q)
			}
			seen(after, q)
			if ended(before) != ended(after) {
				r.PokeLedger()
			}
			enqueue(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q requests) {
			r.forget(e.Object.(*v1alpha1.VMDiskImage), q)
		},
	}
}

func (r *Reconciler) forget(img *v1alpha1.VMDiskImage, q requests) {
	r.follow(q, r.Index.Remove(img.UID))
	r.arrivals.forget(img.UID)
	r.own.forget(img.UID)
	r.roomless.set(image.KeyOf(img), false)
	r.Preflight.Forget(img.UID)
	r.PokeLedger()
}

// follow passes on what a change of the queue means for others.
func (r *Reconciler) follow(q requests, c queue.Change) {
	if c.Head {
		r.PokeLedger()
	}
	for _, key := range c.Passed {
		q.AddAfter(reconcile.Request{NamespacedName: name(key)}, positionDelay)
	}
}

// positionDelay lets the images that get a slot go first: a place in the queue
// is only told, and those at its head may be out of it by then.
const positionDelay = 300 * time.Millisecond

// ended sums up which outcomes an image holds.
func ended(img *v1alpha1.VMDiskImage) (sum string) {
	for i := range img.Status.Revisions {
		e := &img.Status.Revisions[i]
		sum += e.Revision + ":" + strconv.Itoa(int(e.AttemptEnded)) + string(e.Outcome) + " "
	}
	return sum
}

// ledgerHandler has those images looked at whose slots changed.
func ledgerHandler() handler.EventHandler {
	slots := func(o client.Object) []v1alpha1.Slot {
		if l := o.(*v1alpha1.SyncLedger); l.Status != nil {
			return l.Status.Slots
		}
		return nil
	}
	enqueue := func(q requests, these, others []v1alpha1.Slot) {
		for _, s := range these {
			if !slices.Contains(others, s) {
				q.Add(reconcile.Request{NamespacedName: name(s.Image)})
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q requests) { enqueue(q, slots(e.Object), nil) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q requests) {
			before, after := slots(e.ObjectOld), slots(e.ObjectNew)
			enqueue(q, before, after)
			enqueue(q, after, before)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q requests) { enqueue(q, slots(e.Object), nil) },
	}
}
