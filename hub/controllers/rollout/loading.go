package rollout

import (
	"context"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

// loadState is how far the FleetState is filled. Invariant: nothing is decided or desired
// before all of it is known. A plan that is not seen yet would start its cluster again,
// and another cluster in its place.
type loadState struct {
	// synced: the caches have shown all FleetDiskImages, MemberClusters and ClusterPlans.
	synced bool
	// awaitedKnown: awaitedPlans was filled.
	awaitedKnown bool
	// awaitedPlans are plans of which the cache shows an older version than was stored at
	// election: the former leader may have written them just then.
	awaitedPlans map[string]planVersion
	removedPlans map[types.UID]bool // before awaitedKnown
	ready        bool
}

type planVersion struct {
	uid        types.UID
	generation int64
}

// ready requires f.mu.
func (f *FleetState) ready() bool {
	l := &f.loading
	l.ready = l.ready || l.synced && l.awaitedKnown && len(l.awaitedPlans) == 0 && f.ReportsLoaded()
	return l.ready
}

// Ready reports whether everything that decisions depend on is known.
func (f *FleetState) Ready() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ready()
}

// IsSynced reports whether the caches have shown their initial content.
func (f *FleetState) IsSynced() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.loading.synced
}

// isAwaitingPlans reports whether the cache lacks plans that were stored.
func (f *FleetState) isAwaitingPlans() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.loading.awaitedKnown || len(f.loading.awaitedPlans) > 0
}

// EnqueueIfReady enqueues all FleetDiskImages and members, if the FleetState is ready.
func (f *FleetState) EnqueueIfReady() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.enqueueAllIfReady()
}

// enqueueAllIfReady requires f.mu.
func (f *FleetState) enqueueAllIfReady() {
	if f.ready() {
		f.enqueueImages(f.sorted...)
		f.enqueueMembers(f.present...)
	}
}

// MarkSynced records that the caches have shown their initial content.
func (f *FleetState) MarkSynced() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loading.synced = true
	f.enqueueAllIfReady()
}

// awaitPlans names the plans that were stored at election, by member. Called again, it only
// replaces the versions of plans that are awaited still, and drops those that are not stored.
func (f *FleetState) awaitPlans(stored map[string]planVersion) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.loading.awaitedKnown {
		maps.DeleteFunc(stored, func(name string, _ planVersion) bool {
			_, isAwaited := f.loading.awaitedPlans[name]
			return !isAwaited
		})
	}
	f.loading.awaitedPlans, f.loading.awaitedKnown = stored, true
	for name, version := range stored {
		if f.loading.removedPlans[version.uid] {
			delete(stored, name)
		} else {
			f.observePlan(name)
		}
	}
	f.loading.removedPlans = nil
	f.enqueueAllIfReady()
}

// observePlan stops awaiting a plan once the cache shows the awaited version.
func (f *FleetState) observePlan(name string) {
	want, ok := f.loading.awaitedPlans[name]
	if !ok {
		return
	}
	if m := f.members[name]; m != nil && m.plan != nil && m.plan.UID == want.uid && m.plan.Generation >= want.generation {
		f.stopAwaiting(name)
	}
}

// observePlanRemoval stops awaiting a plan that was deleted or replaced.
func (f *FleetState) observePlanRemoval(uid types.UID) {
	if !f.loading.awaitedKnown {
		f.loading.removedPlans[uid] = true
		return
	}
	for name, want := range f.loading.awaitedPlans {
		if want.uid == uid {
			f.stopAwaiting(name)
		}
	}
}

func (f *FleetState) stopAwaiting(name string) {
	delete(f.loading.awaitedPlans, name)
	if len(f.loading.awaitedPlans) == 0 {
		f.enqueueAllIfReady()
	}
}

// storedPlansLoader tells a FleetState which plans are stored when this replica is
// elected.
type storedPlansLoader struct {
	live  client.Reader
	state *FleetState
}

var _ manager.LeaderElectionRunnable = &storedPlansLoader{}

// NeedLeaderElection is true: plans listed before the election may have changed.
func (l *storedPlansLoader) NeedLeaderElection() bool { return true }

// listRetryDelay is the wait before another list.
const listRetryDelay = time.Second

// Start lists once, and after the caches have synced until no plan is awaited: one that was deleted
// after a list and before the cache's first is never seen there.
func (l *storedPlansLoader) Start(ctx context.Context) error {
	for isListed := false; l.state.isAwaitingPlans(); {
		if !isListed || l.state.IsSynced() {
			stored, err := l.listStoredPlans(ctx)
			if err == nil {
				l.state.awaitPlans(stored)
				isListed = true
			} else {
				log.FromContext(ctx).Error(err, "Failed to list ClusterPlans; starting no rollout and retrying", "retryAfter", listRetryDelay)
			}
		}
		if trigger.Sleep(ctx, listRetryDelay) != nil {
			return nil // the hub stops
		}
	}
	return nil
}

func (l *storedPlansLoader) listStoredPlans(ctx context.Context) (map[string]planVersion, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterPlanList"))
	if err := l.live.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing the metadata of ClusterPlans: %w", err)
	}
	stored := map[string]planVersion{}
	for i := range list.Items {
		p := &list.Items[i]
		if name, ok := report.MemberForNamespace(p.Namespace); ok && p.Name == v1alpha1.MailboxName {
			stored[name] = planVersion{p.UID, p.Generation}
		}
	}
	return stored, nil
}
