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

// fill is how far the Board has come to know what it decides on. Until all of it
// is known nothing is decided and nothing is wanted: a plan that is not seen would
// have its cluster begin once more, and one more in its place.
type fill struct {
	// synced: FleetDiskImages, MemberClusters and ClusterPlans were shown as the
	// caches had them.
	synced bool
	// asked: awaited is known.
	asked bool
	// awaited are plans of which the cache has shown an older state than was stored
	// when this replica was elected: the one before may have written them just then.
	awaited map[string]planState
	removed map[types.UID]bool // seen to go before asked
	done    bool
}

type planState struct {
	uid        types.UID
	generation int64
}

// ready tells whether all is known that is decided on. Callers hold b.mu.
func (b *Board) ready() bool {
	f := &b.fill
	f.done = f.done || f.synced && f.asked && len(f.awaited) == 0 && b.Filled()
	return f.done
}

// Ready tells whether all is known that is decided on.
func (b *Board) Ready() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ready()
}

// Shown tells whether the Board knows what the caches had when they began.
func (b *Board) Shown() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fill.synced
}

// Wake has all looked at that waits for the Board to be ready, if it is.
func (b *Board) Wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wake()
}

func (b *Board) wake() {
	if b.ready() {
		b.look(b.order...)
		b.replan(b.present...)
	}
}

// Synced says that the Board was shown all that the caches had when they began.
func (b *Board) Synced() {
	b.mu.Lock()
	b.fill.synced = true
	b.mu.Unlock()
	b.Wake()
}

// await says which plans were stored when this replica was elected.
func (b *Board) await(stored map[string]planState) {
	b.mu.Lock()
	b.fill.awaited, b.fill.asked = stored, true
	for name, state := range stored {
		if b.fill.removed[state.uid] {
			delete(stored, name)
		} else {
			b.planArrived(name)
		}
	}
	b.fill.removed = nil
	b.mu.Unlock()
	b.Wake()
}

// planArrived notes which state of a plan the cache shows.
func (b *Board) planArrived(name string) {
	want, is := b.fill.awaited[name]
	if !is {
		return
	}
	if m := b.members[name]; m != nil && m.plan != nil && m.plan.UID == want.uid && m.plan.Generation >= want.generation {
		b.noLongerAwaited(name)
	}
}

// planRemoved notes that a plan is gone, or another one now.
func (b *Board) planRemoved(uid types.UID) {
	if !b.fill.asked {
		b.fill.removed[uid] = true
		return
	}
	for name, want := range b.fill.awaited {
		if want.uid == uid {
			b.noLongerAwaited(name)
		}
	}
}

func (b *Board) noLongerAwaited(name string) {
	delete(b.fill.awaited, name)
	if len(b.fill.awaited) == 0 {
		b.wake()
	}
}

// elected asks for the stored plans once this replica is elected.
type elected struct {
	live  client.Reader
	board *Board
}

var _ manager.LeaderElectionRunnable = &elected{}

// NeedLeaderElection is true: what was stored before is of no account.
func (e *elected) NeedLeaderElection() bool { return true }

// askAgain is when to ask once more where the API server did not answer.
const askAgain = time.Second

// Start asks until it is answered.
func (e *elected) Start(ctx context.Context) error {
	for {
		stored, err := e.ask(ctx)
		if err == nil {
			e.board.await(stored)
			return nil
		}
		log.FromContext(ctx).Error(err, "Nothing is rolled out before this is known; trying again")
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(askAgain):
		}
	}
}

func (e *elected) ask(ctx context.Context) (map[string]planState, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterPlanList"))
	if err := e.live.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing the metadata of ClusterPlans: %w", err)
	}
	stored := map[string]planState{}
	for i := range list.Items {
		p := &list.Items[i]
		if name, is := report.MemberOf(p.Namespace); is && p.Name == v1alpha1.MailboxName {
			stored[name] = planState{p.UID, p.Generation}
		}
	}
	return stored, nil
}
