package rollout

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

// loadState is how far the Board has come to know what it decides on. Until all of it
// is known nothing is decided and nothing is wanted: a plan that is not seen would
// have its cluster begin once more, and one more in its place.
type loadState struct {
	// synced: FleetDiskImages, MemberClusters and ClusterPlans were shown as the
	// caches had them.
	synced bool
	// asked: awaited is known.
	awaitedKnown bool
	// awaitedPlans are plans of which the cache has shown an older state than was stored
	// when this replica was elected: the one before may have written them just then.
	awaitedPlans map[string]planVersion
	removedPlans map[types.UID]bool // seen to go before asked
	ready        bool
}

type planVersion struct {
	uid        types.UID
	generation int64
}

// ready tells whether all is known that is decided on. Callers hold b.mu.
func (b *FleetState) ready() bool {
	f := &b.loading
	f.ready = f.ready || f.synced && f.awaitedKnown && len(f.awaitedPlans) == 0 && b.ReportsLoaded()
	return f.ready
}

// Ready tells whether all is known that is decided on.
func (b *FleetState) Ready() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ready()
}

// IsSynced tells whether the Board knows what the caches had when they began.
func (b *FleetState) IsSynced() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.loading.synced
}

// EnqueueIfReady has all looked at that waits for the Board to be ready, if it is.
func (b *FleetState) EnqueueIfReady() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.enqueueAllIfReady()
}

func (b *FleetState) enqueueAllIfReady() {
	if b.ready() {
		b.enqueueImages(b.sorted...)
		b.enqueueMembers(b.present...)
	}
}

// MarkSynced says that the Board was shown all that the caches had when they began.
func (b *FleetState) MarkSynced() {
	b.mu.Lock()
	b.loading.synced = true
	b.mu.Unlock()
	b.EnqueueIfReady()
}

// awaitPlans says which plans were stored when this replica was elected.
func (b *FleetState) awaitPlans(stored map[string]planVersion) {
	b.mu.Lock()
	b.loading.awaitedPlans, b.loading.awaitedKnown = stored, true
	for name, state := range stored {
		if b.loading.removedPlans[state.uid] {
			delete(stored, name)
		} else {
			b.observePlan(name)
		}
	}
	b.loading.removedPlans = nil
	b.mu.Unlock()
	b.EnqueueIfReady()
}

// observePlan notes which state of a plan the cache shows.
func (b *FleetState) observePlan(name string) {
	want, is := b.loading.awaitedPlans[name]
	if !is {
		return
	}
	if m := b.members[name]; m != nil && m.plan != nil && m.plan.UID == want.uid && m.plan.Generation >= want.generation {
		b.stopAwaiting(name)
	}
}

// observePlanRemoval notes that a plan is gone, or another one now.
func (b *FleetState) observePlanRemoval(uid types.UID) {
	if !b.loading.awaitedKnown {
		b.loading.removedPlans[uid] = true
		return
	}
	for name, want := range b.loading.awaitedPlans {
		if want.uid == uid {
			b.stopAwaiting(name)
		}
	}
}

func (b *FleetState) stopAwaiting(name string) {
	delete(b.loading.awaitedPlans, name)
	if len(b.loading.awaitedPlans) == 0 {
		b.enqueueAllIfReady()
	}
}

// storedPlansLoader asks for the stored plans once this replica is elected.
type storedPlansLoader struct {
	live  client.Reader
	state *FleetState
}

var _ manager.LeaderElectionRunnable = &storedPlansLoader{}

// NeedLeaderElection is true: what was stored before is of no account.
func (e *storedPlansLoader) NeedLeaderElection() bool { return true }

// listRetryDelay is when to ask once more where the API server did not answer.
const listRetryDelay = time.Second

// Start asks until it is answered.
func (e *storedPlansLoader) Start(ctx context.Context) error {
	for {
		stored, err := e.listStoredPlans(ctx)
		if err == nil {
			e.state.awaitPlans(stored)
			return nil
		}
		log.FromContext(ctx).Error(err, "Nothing is rolled out before this is known; trying again")
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listRetryDelay):
		}
	}
}

func (e *storedPlansLoader) listStoredPlans(ctx context.Context) (map[string]planVersion, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterPlanList"))
	if err := e.live.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing the metadata of ClusterPlans: %w", err)
	}
	stored := map[string]planVersion{}
	for i := range list.Items {
		p := &list.Items[i]
		if name, is := report.MemberForNamespace(p.Namespace); is && p.Name == v1alpha1.MailboxName {
			stored[name] = planVersion{p.UID, p.Generation}
		}
	}
	return stored, nil
}
