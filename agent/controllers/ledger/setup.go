package ledger

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func (r *Reconciler) request() reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.LedgerName}}
}

// Enqueue requeues the ledger. It never blocks.
func (r *Reconciler) Enqueue() { r.triggers.Enqueue(r.request()) }

// Setup adds the controller to a manager. Every event leads to the one request, for the
// one ledger.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	r.createdAt, r.unlistedSince = map[string]time.Time{}, map[string]time.Time{}
	enqueue := trigger.Always(r.request())
	neverCreate := func(event.CreateEvent) bool { return false }
	neverUpdate := func(event.UpdateEvent) bool { return false }
	neverGeneric := func(event.GenericEvent) bool { return false }
	onlyDeletes := predicate.Funcs{CreateFunc: neverCreate, UpdateFunc: neverUpdate, GenericFunc: neverGeneric}
	createsAndDeletes := predicate.Funcs{UpdateFunc: neverUpdate, GenericFunc: neverGeneric}
	// This process has acted on its own writes already.
	foreignWrites := predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool { return !r.isLastVersion(e.ObjectNew.GetResourceVersion()) },
	}
	c, err := ctrl.NewControllerManagedBy(mgr).
		Named("ledger").
		Watches(&v1alpha1.SyncLedger{}, enqueue, builder.WithPredicates(foreignWrites)).
		Watches(&corev1.ConfigMap{}, enqueue).
		WatchesRawSource(&r.triggers).
		WithOptions(controller.Options{RateLimiter: trigger.NewRateLimiter()}).
		Build(r)
	if err != nil {
		return err
	}
	for _, obj := range []client.Object{&corev1.PersistentVolumeClaim{}, &corev1.Pod{}} {
		if err := c.Watch(source.Kind(mgr.GetCache(), obj, enqueue, onlyDeletes)); err != nil {
			return err
		}
	}
	r.Kinds.WhenServed(plan.Kind, r.watchMailbox(&v1alpha1.ClusterPlan{}, r.Policy.SetPlanServed))
	r.Kinds.WhenServed(grantKind, r.watchMailbox(&v1alpha1.TransferGrant{}, func() { r.grantServed.Store(true) }))
	r.Kinds.WhenServed(image.DataVolumeGVK, func(ctx context.Context) error {
		if err := mgr.GetFieldIndexer().IndexField(ctx, &cdiv1.DataVolume{}, image.UnfinishedIndex, indexUnfinished); err != nil {
			return err
		}
		if err := apidiscovery.Watch(ctx, c, mgr.GetCache(), &cdiv1.DataVolume{}, enqueue, createsAndDeletes); err != nil {
			return err
		}
		r.Enqueue()
		return nil
	})
	return nil
}

// watchMailbox requeues the ledger at every event of a kind of the mailbox, and calls
// onServed once no event can be missed.
func (r *Reconciler) watchMailbox(obj client.Object, onServed func()) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := apidiscovery.NotifyOnEvents(ctx, r.Mailbox, obj, r.Enqueue); err != nil {
			return err
		}
		onServed()
		r.Enqueue()
		return nil
	}
}

func indexUnfinished(o client.Object) []string {
	if o.(*cdiv1.DataVolume).Status.Phase == cdiv1.Succeeded {
		return nil
	}
	return []string{image.UnfinishedIndexValue}
}
