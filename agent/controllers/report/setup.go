package report

import (
	"context"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Kind of a report. It may come to be served after the agent runs.
var Kind = v1alpha1.GroupVersion.WithKind("ClusterReport")

// maxRetryDelay between two tries: an API server that is back is to hear from the
// agent within a heartbeat or so.
const maxRetryDelay = 5 * time.Second

// Enqueue has what became of the plan looked at again. It never blocks: one poke
// that is not taken yet stands for all.
func (r *Reconciler) Enqueue() {
	select {
	case r.triggers <- event.GenericEvent{}:
	default:
	}
}

// Setup adds the controller to a manager. There is one request, for the whole
// report, an interval after the first of the events that ask for it.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	r.triggers = make(chan event.GenericEvent, 1)
	r.stored = map[string]*storedObject{}
	r.changes = newChangeTracker()
	child := r.delayedHandler(r.changes.isOrphanedChild)
	c, err := ctrl.NewControllerManagedBy(mgr).
		Named("report").
		Watches(&v1alpha1.VMDiskImage{}, r.imageEventHandler()).
		Watches(&corev1.PersistentVolumeClaim{}, child).
		Watches(&v1alpha1.SyncLedger{}, r.delayedHandler(func(client.Object) bool { return true })).
		WatchesRawSource(source.Channel(r.triggers, r.delayedHandler(func(client.Object) bool { return true }))).
		WithOptions(controller.Options{RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](r.Interval, max(r.Interval, maxRetryDelay))}).
		Build(r)
	if err != nil {
		return err
	}
	for kind, obj := range map[schema.GroupVersionKind]client.Object{image.DataVolumeGVK: &cdiv1.DataVolume{}, image.VolumeSnapshotGVK: &snapshotv1.VolumeSnapshot{}} {
		r.Kinds.WhenServed(kind, func(ctx context.Context) error { return apidiscovery.Watch(ctx, c, mgr.GetCache(), obj, child) })
	}
	r.Kinds.WhenServed(Kind, func(ctx context.Context) error {
		own := &metav1.PartialObjectMetadata{}
		own.SetGroupVersionKind(Kind)
		if err := apidiscovery.Watch(ctx, c, r.Mailbox, own, r.reportEventHandler()); err != nil {
			return err
		}
		r.served.Store(true)
		r.Enqueue()
		return nil
	})
	return nil
}

func (r *Reconciler) reportRequest() reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.MailboxName}}
}

type requestQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// delayedHandler asks for a report after an interval, where an event is a reason to.
func (r *Reconciler) delayedHandler(matters func(client.Object) bool) handler.EventHandler {
	enqueue := func(o client.Object, q requestQueue) {
		if matters(o) {
			q.AddAfter(r.reportRequest(), r.Interval)
		}
	}
	return handler.Funcs{
		CreateFunc:  func(_ context.Context, e event.CreateEvent, q requestQueue) { enqueue(e.Object, q) },
		UpdateFunc:  func(_ context.Context, e event.UpdateEvent, q requestQueue) { enqueue(e.ObjectNew, q) },
		DeleteFunc:  func(_ context.Context, e event.DeleteEvent, q requestQueue) { enqueue(e.Object, q) },
		GenericFunc: func(_ context.Context, e event.GenericEvent, q requestQueue) { enqueue(e.Object, q) },
	}
}

// imageEventHandler asks for a report of whatever happens to images.
func (r *Reconciler) imageEventHandler() handler.EventHandler {
	there := r.delayedHandler(func(o client.Object) bool { r.changes.imageChanged(o); return true })
	gone := r.delayedHandler(func(o client.Object) bool { r.changes.imageDeleted(o); return true })
	return handler.Funcs{
		CreateFunc: there.Create,
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q requestQueue) {
			if e.ObjectOld.GetUID() != e.ObjectNew.GetUID() {
				r.changes.imageDeleted(e.ObjectOld)
			}
			there.Update(ctx, e, q)
		},
		DeleteFunc: gone.Delete,
	}
}

// reportEventHandler has those of the report's objects read again that somebody else has
// written or deleted.
func (r *Reconciler) reportEventHandler() handler.EventHandler {
	changed := r.delayedHandler(func(o client.Object) bool { return r.changes.objectChanged(o.GetName(), o.GetResourceVersion()) })
	gone := r.delayedHandler(func(o client.Object) bool { return r.changes.objectChanged(o.GetName(), "") })
	return handler.Funcs{CreateFunc: changed.Create, UpdateFunc: changed.Update, DeleteFunc: gone.Delete}
}
