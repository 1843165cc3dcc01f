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

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Kind of a report. It may come to be served after the agent has started.
var Kind = v1alpha1.GroupVersion.WithKind("ClusterReport")

// maxRetryDelay bounds the backoff: an API server that is back gets a report within about a
// heartbeat.
const maxRetryDelay = 5 * time.Second

func (r *Reconciler) request() reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.MailboxName}}
}

// Enqueue requeues the report, after an interval. It never blocks.
func (r *Reconciler) Enqueue() { r.triggers.EnqueueAfter(r.request(), r.Interval) }

// Setup adds the controller to a manager. Every event leads to the one request, an interval
// later, so that a report gathers the events that come until then.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	r.stored = map[string]*storedObject{}
	r.changes = newChangeTracker()
	child := r.delayedHandler(r.changes.isOrphanedChild)
	c, err := ctrl.NewControllerManagedBy(mgr).
		Named("report").
		Watches(&v1alpha1.VMDiskImage{}, r.imageEventHandler()).
		Watches(&corev1.PersistentVolumeClaim{}, child).
		Watches(&v1alpha1.SyncLedger{}, r.delayedHandler(func(client.Object) bool { return true })).
		WatchesRawSource(&r.triggers).
		WithOptions(controller.Options{RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](r.Interval, max(r.Interval, maxRetryDelay))}).
		Build(r)
	if err != nil {
		return err
	}
	for kind, obj := range map[schema.GroupVersionKind]client.Object{image.DataVolumeGVK: &cdiv1.DataVolume{}, image.VolumeSnapshotGVK: &snapshotv1.VolumeSnapshot{}} {
		r.Kinds.WhenServed(kind, func(ctx context.Context) error {
			return apidiscovery.Watch(ctx, c, mgr.GetCache(), obj, child)
		})
	}
	r.Kinds.WhenServed(Kind, func(ctx context.Context) error {
		reports := &metav1.PartialObjectMetadata{}
		reports.SetGroupVersionKind(Kind)
		if err := apidiscovery.Watch(ctx, c, r.Mailbox, reports, r.reportEventHandler()); err != nil {
			return err
		}
		r.served.Store(true)
		r.Enqueue()
		return nil
	})
	return nil
}

type requestQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// delayedHandler requeues the report, after an interval, for the objects that matter.
func (r *Reconciler) delayedHandler(matters func(client.Object) bool) handler.EventHandler {
	enqueue := func(o client.Object, q requestQueue) {
		if matters(o) {
			q.AddAfter(r.request(), r.Interval)
		}
	}
	return handler.Funcs{
		CreateFunc:  func(_ context.Context, e event.CreateEvent, q requestQueue) { enqueue(e.Object, q) },
		UpdateFunc:  func(_ context.Context, e event.UpdateEvent, q requestQueue) { enqueue(e.ObjectNew, q) },
		DeleteFunc:  func(_ context.Context, e event.DeleteEvent, q requestQueue) { enqueue(e.Object, q) },
		GenericFunc: func(_ context.Context, e event.GenericEvent, q requestQueue) { enqueue(e.Object, q) },
	}
}

// imageEventHandler records every change of an image.
func (r *Reconciler) imageEventHandler() handler.EventHandler {
	changed := r.delayedHandler(func(o client.Object) bool { r.changes.imageChanged(o); return true })
	deleted := r.delayedHandler(func(o client.Object) bool { r.changes.imageDeleted(o); return true })
	return handler.Funcs{
		CreateFunc: changed.Create,
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q requestQueue) {
			if e.ObjectOld.GetUID() != e.ObjectNew.GetUID() {
				r.changes.imageDeleted(e.ObjectOld)
			}
			changed.Update(ctx, e, q)
		},
		DeleteFunc: deleted.Delete,
	}
}

// reportEventHandler records the objects of the report that somebody else has written or
// deleted.
func (r *Reconciler) reportEventHandler() handler.EventHandler {
	changed := r.delayedHandler(func(o client.Object) bool { return r.changes.objectChanged(o.GetName(), o.GetResourceVersion()) })
	deleted := r.delayedHandler(func(o client.Object) bool { return r.changes.objectChanged(o.GetName(), "") })
	return handler.Funcs{CreateFunc: changed.Create, UpdateFunc: changed.Update, DeleteFunc: deleted.Delete}
}
