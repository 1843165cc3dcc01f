package rollout

import (
	"context"
	"errors"
	"fmt"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

const (
	// maxConcurrentReconciles: decisions are serialized, status writes are not.
	maxConcurrentReconciles = 4
	// minDecideInterval batches events: a MemberCluster that is created or deleted
	// concerns every FleetDiskImage.
	minDecideInterval = 100 * time.Millisecond
)

// Setup adds the controller to a manager, and what fills the FleetState.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	r.throttle = trigger.Throttle{MinInterval: minDecideInterval}
	r.State.OnImageChange(func(image string) { r.requeue.Enqueue(trigger.Requests(image)[0]) })
	err := ctrl.NewControllerManagedBy(mgr).
		Named("rollout").
		WatchesRawSource(&r.requeue).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: maxConcurrentReconciles,
			RateLimiter:             trigger.NewRateLimiter(),
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

// cacheWatcher fills a FleetState from the caches.
type cacheWatcher struct {
	cache cache.Cache
	state *FleetState
}

var _ manager.LeaderElectionRunnable = &cacheWatcher{}

// NeedLeaderElection is true: only the leader needs the cache of all members' plans.
func (w *cacheWatcher) NeedLeaderElection() bool { return true }

// Start registers the event handlers, and returns once the caches have synced.
func (w *cacheWatcher) Start(ctx context.Context) error {
	var synced []toolscache.InformerSynced
	for _, kind := range []struct {
		object   client.Object
		onSet    func(any)
		onDelete func(namespace, name string)
	}{
		{&v1alpha1.MemberCluster{}, onlyType(w.state.SetMember), func(_, name string) { w.state.RemoveMember(name) }},
		{&v1alpha1.ClusterPlan{}, onlyType(w.setPlan), w.removePlan},
		{&v1alpha1.FleetDiskImage{}, onlyType(w.state.SetImage), func(_, name string) { w.state.RemoveImage(name) }},
	} {
		informer, err := w.cache.GetInformer(ctx, kind.object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching %T: %w", kind.object, err)
		}
		handler, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    kind.onSet,
			UpdateFunc: func(_, after any) { kind.onSet(after) },
			DeleteFunc: func(o any) {
				// The key function also reads tombstones, of objects deleted during a gap in the watch.
				if key, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
					if namespace, name, err := toolscache.SplitMetaNamespaceKey(key); err == nil {
						kind.onDelete(namespace, name)
					}
				}
			},
		})
		if err != nil {
			return fmt.Errorf("watching %T: %w", kind.object, err)
		}
		synced = append(synced, handler.HasSynced)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), synced...) {
		if ctx.Err() != nil {
			return nil // the hub stops
		}
		return errors.New("watching FleetDiskImages, MemberClusters and ClusterPlans: the caches did not sync")
	}
	w.state.MarkSynced()
	return nil
}

func (w *cacheWatcher) setPlan(plan *v1alpha1.ClusterPlan) {
	if member, ok := report.MemberForNamespace(plan.Namespace); ok && plan.Name == v1alpha1.MailboxName {
		w.state.SetPlan(member, plan)
	}
}

func (w *cacheWatcher) removePlan(namespace, name string) {
	if member, ok := report.MemberForNamespace(namespace); ok && name == v1alpha1.MailboxName {
		w.state.SetPlan(member, nil)
	}
}

// onlyType ignores objects of other types.
func onlyType[T client.Object](set func(T)) func(any) {
	return func(o any) {
		if typed, ok := o.(T); ok {
			set(typed)
		}
	}
}
