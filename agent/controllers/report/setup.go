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

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/kinds"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Kind of a report. It may come to be served after the agent runs.
var Kind = v1alpha1.GroupVersion.WithKind("ClusterReport")

// longestWait between two tries: an API server that is back is to hear from the
// agent within a heartbeat or so.
const longestWait = 5 * time.Second

// Poke has what became of the plan looked at again. It never blocks: one poke
// that is not taken yet stands for all.
func (r *Reconciler) Poke() {
	select {
	case r.pokes <- event.GenericEvent{}:
	default:
	}
}

// Setup adds the controller to a manager. There is one request, for the whole
// report, an interval after the first of the events that ask for it.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	r.pokes = make(chan event.GenericEvent, 1)
	r.stored = map[string]*record{}
	r.news = newNews()
	child := r.handler(r.news.child)
	c, err := ctrl.NewControllerManagedBy(mgr).
		Named("report").
		Watches(&v1alpha1.VMDiskImage{}, r.imageHandler()).
		Watches(&corev1.PersistentVolumeClaim{}, child).
		Watches(&v1alpha1.SyncLedger{}, r.handler(func(client.Object) bool { return true })).
		WatchesRawSource(source.Channel(r.pokes, r.handler(func(client.Object) bool { return true }))).
		WithOptions(controller.Options{RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](r.Interval, max(r.Interval, longestWait))}).
		Build(r)
	if err != nil {
		return err
	}
	for kind, obj := range map[schema.GroupVersionKind]client.Object{image.DataVolumeKind: &cdiv1.DataVolume{}, image.VolumeSnapshotKind: &snapshotv1.VolumeSnapshot{}} {
		r.Kinds.WhenServed(kind, func(ctx context.Context) error { return kinds.Watch(ctx, c, mgr.GetCache(), obj, child) })
	}
	r.Kinds.WhenServed(Kind, func(ctx context.Context) error {
		own := &metav1.PartialObjectMetadata{}
		own.SetGroupVersionKind(Kind)
		if err := kinds.Watch(ctx, c, r.Mailbox, own, r.ownHandler()); err != nil {
			return err
		}
		r.served.Store(true)
		r.Poke()
		return nil
	})
	return nil
}

func (r *Reconciler) request() reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.MailboxName}}
}

type requests = workqueue.TypedRateLimitingInterface[reconcile.Request]

// handler asks for a report after an interval, where an event is a reason to.
func (r *Reconciler) handler(matters func(client.Object) bool) handler.EventHandler {
	enqueue := func(o client.Object, q requests) {
		if matters(o) {
			q.AddAfter(r.request(), r.Interval)
		}
	}
	return handler.Funcs{
		CreateFunc:  func(_ context.Context, e event.CreateEvent, q requests) { enqueue(e.Object, q) },
		UpdateFunc:  func(_ context.Context, e event.UpdateEvent, q requests) { enqueue(e.ObjectNew, q) },
		DeleteFunc:  func(_ context.Context, e event.DeleteEvent, q requests) { enqueue(e.Object, q) },
		GenericFunc: func(_ context.Context, e event.GenericEvent, q requests) { enqueue(e.Object, q) },
	}
}

// imageHandler asks for a report of whatever happens to images.
func (r *Reconciler) imageHandler() handler.EventHandler {
	there := r.handler(func(o client.Object) bool { r.news.image(o); return true })
	gone := r.handler(func(o client.Object) bool { r.news.imageGone(o); return true })
	return handler.Funcs{
		CreateFunc: there.Create,
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q requests) {
			if e.ObjectOld.GetUID() != e.ObjectNew.GetUID() {
				r.news.imageGone(e.ObjectOld)
			}
			there.Update(ctx, e, q)
		},
		DeleteFunc: gone.Delete,
	}
}

// ownHandler has those of the report's objects read again that somebody else has
// written or deleted.
func (r *Reconciler) ownHandler() handler.EventHandler {
	changed := r.handler(func(o client.Object) bool { return r.news.object(o.GetName(), o.GetResourceVersion()) })
	gone := r.handler(func(o client.Object) bool { return r.news.object(o.GetName(), "") })
	return handler.Funcs{CreateFunc: changed.Create, UpdateFunc: changed.Update, DeleteFunc: gone.Delete}
}
