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
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Enqueue has the ledger looked at again. It never blocks: one poke that is not
// taken yet stands for all.
func (r *Reconciler) Enqueue() {
	select {
	case r.triggers <- event.GenericEvent{}:
	default:
	}
}

// Setup adds the controller to a manager. There is one request, for the one
// ledger: whatever happens, the whole is looked at.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	r.triggers = make(chan event.GenericEvent, 1)
	r.createdAt = map[string]time.Time{}
	request := []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.LedgerName}}}
	ledger := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return request })
	gone := predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
	comesAndGoes := predicate.Funcs{
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
	// What this process has written itself it has acted upon already.
	others := predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool { return !r.isLastVersion(e.ObjectNew.GetResourceVersion()) },
	}
	c, err := ctrl.NewControllerManagedBy(mgr).
		Named("ledger").
		Watches(&v1alpha1.SyncLedger{}, ledger, builder.WithPredicates(others)).
		Watches(&corev1.ConfigMap{}, ledger).
		WatchesRawSource(source.Channel(r.triggers, ledger)).
		Build(r)
	if err != nil {
		return err
	}
	for _, obj := range []client.Object{&corev1.PersistentVolumeClaim{}, &corev1.Pod{}} {
		if err := c.Watch(source.Kind(mgr.GetCache(), obj, ledger, gone)); err != nil {
			return err
		}
	}
	r.Kinds.WhenServed(plan.Kind, func(ctx context.Context) error {
		if err := apidiscovery.NotifyOnEvents(ctx, r.Mailbox, &v1alpha1.ClusterPlan{}, r.Enqueue); err != nil {
			return err
		}
		r.planServed.Store(true)
		r.Enqueue()
		return nil
	})
	r.Kinds.WhenServed(grantKind, func(ctx context.Context) error {
		if err := apidiscovery.NotifyOnEvents(ctx, r.Mailbox, &v1alpha1.TransferGrant{}, r.Enqueue); err != nil {
			return err
		}
		r.grantServed.Store(true)
		r.Enqueue()
		return nil
	})
	r.Kinds.WhenServed(image.DataVolumeGVK, func(ctx context.Context) error {
		if err := mgr.GetFieldIndexer().IndexField(ctx, &cdiv1.DataVolume{}, image.UnfinishedIndex, func(o client.Object) []string {
			if o.(*cdiv1.DataVolume).Status.Phase == cdiv1.Succeeded {
				return nil
			}
			return []string{image.UnfinishedIndexValue}
		}); err != nil {
			return err
		}
		if err := apidiscovery.Watch(ctx, c, mgr.GetCache(), &cdiv1.DataVolume{}, ledger, comesAndGoes); err != nil {
			return err
		}
		r.Enqueue()
		return nil
	})
	return nil
}
