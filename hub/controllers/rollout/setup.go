package rollout

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

// maxConcurrentReconciles look after FleetDiskImages at a time: one decides, the others write.
const maxConcurrentReconciles = 4

// Setup adds the controller to a manager, and what fills the Board.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	r.State.OnImageChange(func(image string) {
		r.requeue.Enqueue(ctrl.Request{NamespacedName: types.NamespacedName{Name: image}})
	})
	err := ctrl.NewControllerManagedBy(mgr).
		Named("rollout").
		WatchesRawSource(&r.requeue).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: maxConcurrentReconciles,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](conflictRetryDelay, maxBackoff),
		}).
		Complete(r)
	if err != nil {
		return err
	}
	if err := mgr.Add(&cacheWatcher{cache: mgr.GetCache(), state: r.State}); err != nil {
		return err
	}
	return mgr.Add(&storedPlansLoader{live: r.Live, state: r.State})
}

// cacheWatcher shows the Board what the caches have.
type cacheWatcher struct {
	cache cache.Cache
	state *FleetState
}

var _ manager.LeaderElectionRunnable = &cacheWatcher{}

// NeedLeaderElection is true: it has the cache hold the plans of all members, which
// no other replica needs.
func (w *cacheWatcher) NeedLeaderElection() bool { return true }

// Start shows all that there is, and then what changes.
func (w *cacheWatcher) Start(ctx context.Context) error {
	b := w.state
	var shown []toolscache.InformerSynced
	for _, of := range []struct {
		kind client.Object
		set  func(any)
		gone func(namespace, name string)
	}{
		{&v1alpha1.MemberCluster{}, onlyType(b.SetMember), func(_, name string) { b.RemoveMember(name) }},
		{&v1alpha1.ClusterPlan{}, onlyType(w.setPlan), func(namespace, name string) {
			if member, is := report.MemberForNamespace(namespace); is && name == v1alpha1.MailboxName {
				b.SetPlan(member, nil)
			}
		}},
		{&v1alpha1.FleetDiskImage{}, onlyType(b.SetImage), func(_, name string) { b.RemoveImage(name) }},
	} {
		informer, err := w.cache.GetInformer(ctx, of.kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching %T: %w", of.kind, err)
		}
		handler, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    of.set,
			UpdateFunc: func(_, now any) { of.set(now) },
			DeleteFunc: func(o any) {
				// The key names also what was seen to be gone only after a gap in the watch.
				if key, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
					if namespace, name, err := toolscache.SplitMetaNamespaceKey(key); err == nil {
						of.gone(namespace, name)
					}
				}
			},
		})
		if err != nil {
			return fmt.Errorf("watching %T: %w", of.kind, err)
		}
		shown = append(shown, handler.HasSynced)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), shown...) {
		if ctx.Err() != nil {
			return nil // the hub stops
		}
		return errors.New("watching FleetDiskImages, MemberClusters and ClusterPlans: the caches did not sync")
	}
	b.MarkSynced()
	return nil
}

func (w *cacheWatcher) setPlan(plan *v1alpha1.ClusterPlan) {
	if member, is := report.MemberForNamespace(plan.Namespace); is && plan.Name == v1alpha1.MailboxName {
		w.state.SetPlan(member, plan)
	}
}

// onlyType leaves out what is of another type.
func onlyType[T client.Object](set func(T)) func(any) {
	return func(o any) {
		if typed, is := o.(T); is {
			set(typed)
		}
	}
}
