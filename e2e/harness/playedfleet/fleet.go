// Package playedfleet plays a fleet in memory behind the hub's real read API: members report,
// import and queue, rollouts proceed, and somebody prunes. Statuses are those of the hub's own
// decisions. It is for looking at the dashboard, and for its tests.
package playedfleet

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/history"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/policy"
	"github.com/pelotech/ot-fleet/hub/rollout"
	"github.com/pelotech/ot-fleet/hub/web"
)

// Epoch is a time for fleets that stand still.
var Epoch = time.Date(2026, time.March, 3, 14, 20, 0, 0, time.UTC)

// Options of a Fleet.
type Options struct {
	// Scenario is one of Scenarios.
	Scenario string
	// Seed of what happens by chance.
	Seed uint64
	// Now is the clock; nil for time.Now. A fleet whose clock stands does not move.
	Now func() time.Time
}

// Fleet is a played fleet.
type Fleet struct {
	*web.API

	mu       sync.Mutex
	scenario *scenario
	now      func() time.Time
	// at is the time that the fleet has been played to.
	at      time.Time
	random  *rand.Rand
	store   *store
	members []*member
	// waves are the members in the order in which waves reach them.
	waves []*member
	// sources describes each spec, by its revision.
	sources map[string]string
	images  []*fleetImage
	reports []playedReport
	prunes  []*playedPrune
	data    map[string]string
	policy  *policy.Policy
	history *history.History
	// sampledAt is when the History was last written.
	sampledAt time.Time
	// next is the index of the member that starts imports first.
	next           int
	changedMembers bool
}

// New returns the fleet of a scenario, played to now.
func New(o Options) (*Fleet, error) {
	s, known := scenarios[o.Scenario]
	if !known {
		return nil, fmt.Errorf("there is no scenario %q, only %s", o.Scenario, strings.Join(Scenarios(), ", "))
	}
	f := &Fleet{scenario: &s, now: o.Now, store: newStore(), sources: map[string]string{}, random: rand.New(rand.NewPCG(o.Seed, hashOf(o.Scenario)))}
	if f.now == nil {
		f.now = time.Now
	}
	end := f.now().UTC().Truncate(time.Second)
	f.at = end.Add(-s.warmUp)
	f.data = s.policy
	if f.data == nil {
		f.data = fleetPolicy
	}
	var errs []error
	if f.policy, errs = parsePolicy(f.data); len(errs) > 0 {
		return nil, fmt.Errorf("the policy of scenario %s is invalid: %v", o.Scenario, errs)
	}
	f.history = history.New(end.Add(-s.electedFor))
	f.setupAPI()
	f.putPolicy()
	s.build(f)
	f.joinMembers(end)
	f.playHistory()
	for f.at.Before(end) {
		f.step(min(s.warmStep, end.Sub(f.at)))
	}
	if s.prunes != nil {
		if err := s.prunes(f); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func parsePolicy(data map[string]string) (*policy.Policy, []error) {
	p, _, errs := policy.ParsePolicy(data)
	all := make([]error, len(errs))
	for i := range errs {
		all[i] = errs[i]
	}
	return p, all
}

func hashOf(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return h.Sum64() & 0xffffffff
}

func (f *Fleet) setupAPI() {
	index, changes := inventory.NewIndex(), web.NewChanges("played")
	index.OnChange(func(c inventory.Change) {
		if c == inventory.ChangedActivity {
			changes.Mark(readapi.TopicTransfers)
			return
		}
		changes.Mark(readapi.TopicImages)
	})
	f.API = &web.API{
		Members: f.store, Live: f.store, Index: index, Pages: f, Changes: changes, Clock: f.now,
		ReportsLoaded: func() bool { return true },
		History:       func() *history.History { return f.history },
		Stopping:      make(chan struct{}),
		PolicyKey:     types.NamespacedName{Namespace: hubNamespace, Name: policyName},
		Policy: func() answers.PolicyInForce {
			return answers.PolicyInForce{Policy: f.policy, Accepted: true, Now: f.now()}
		},
		PageNames: func(name string) (names []string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if m := f.findMember(name); m != nil && m.root != nil {
				for _, page := range m.root.Pages {
					names = append(names, page.Name)
				}
			}
			return names
		},
		Root: func(name string) (*v1alpha1.ReportRoot, *time.Time) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if m := f.findMember(name); m != nil && m.root != nil {
				heard := m.heardAt
				return m.root, &heard
			}
			return nil, nil
		},
		HeldBySource: func() map[string]int64 {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.held()
		},
		RolloutView: func(name string) (rollout.View, bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, img := range f.images {
				if img.object.Name == name {
					return f.newView(img), true
				}
			}
			return rollout.View{}, false
		},
		PruneTargets: f.pruneTargets,
	}
}

// Page implements web.Pages.
func (f *Fleet) Page(_ context.Context, name, page string) ([]v1alpha1.ReportedImage, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.findMember(name)
	if m == nil || m.root == nil {
		return nil, false, nil
	}
	for i := range m.root.Pages {
		if m.root.Pages[i].Name == page {
			return m.pages[i], true, nil
		}
	}
	return nil, false, nil
}

func (f *Fleet) findMember(name string) *member {
	i, found := slices.BinarySearchFunc(f.members, name, func(m *member, name string) int { return strings.Compare(m.name(), name) })
	if !found {
		return nil
	}
	return f.members[i]
}

// joinMembers has all members report for the first time, some weeks ago, and then what they
// say now.
func (f *Fleet) joinMembers(end time.Time) {
	slices.SortFunc(f.members, func(a, b *member) int { return strings.Compare(a.name(), b.name()) })
	for _, m := range f.members {
		m.object.CreationTimestamp = metav1.NewTime(end.Add(-joinedFor).Truncate(time.Second))
		m.policy, m.source, _ = f.policy.ForMember(m.name(), m.object.Labels)
		m.concurrency = int32(policy.ConcurrencyAt(m.policy, f.at))
		if m.own != nil {
			m.concurrency = min(m.concurrency, *m.own)
		}
		if m.neverReported {
			m.object.CreationTimestamp = metav1.NewTime(end.Add(-25 * time.Minute).Truncate(time.Second))
			f.report(m, f.at)
			continue
		}
		silentSince, unreachable, quarantine := m.silentSince, m.unreachable, m.object.Spec.Quarantine
		m.silentSince, m.unreachable, m.object.Spec.Quarantine = time.Time{}, "", nil
		f.report(m, f.at.Add(-joinedFor))
		m.silentSince, m.unreachable, m.object.Spec.Quarantine = silentSince, unreachable, quarantine
		if quarantine != nil {
			m.heardAt = f.at.Add(-30 * time.Hour)
			f.setStatus(m, m.heardAt)
			continue
		}
		if !silentSince.IsZero() {
			f.report(m, silentSince.Add(5*heartbeat))
			continue
		}
		m.heardAt = f.at
		m.root.ObservedAt = metav1.NewTime(f.at.Truncate(time.Second))
		f.Index.SetRoot(m.name(), m.root)
		f.reportActivity(m, f.at)
		f.setStatus(m, f.at)
	}
	for _, img := range f.images {
		f.decide(img)
	}
}

// Run plays the fleet until the context ends.
func (f *Fleet) Run(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			f.Play()
		}
	}
}

// Play plays the fleet to now.
func (f *Fleet) Play() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if elapsed := f.now().UTC().Truncate(time.Second).Sub(f.at); elapsed > 0 {
		f.step(elapsed)
	}
}

// step plays a time.
func (f *Fleet) step(elapsed time.Duration) {
	f.at = f.at.Add(elapsed)
	for _, m := range f.members {
		if m.speaks() {
			f.playImports(m, elapsed)
		}
	}
	f.startImports()
	f.churn(elapsed)
	for i, m := range f.members {
		switch {
		case !m.speaks():
		case m.dirty:
			f.report(m, f.at)
		case m.active+m.queued > 0:
			m.heardAt = f.at
			f.reportActivity(m, f.at)
		case f.at.Sub(m.heardAt) >= time.Minute+time.Duration(i%60)*time.Second:
			m.heardAt = f.at
			m.root.ObservedAt = metav1.NewTime(f.at.Truncate(time.Second))
			f.setStatus(m, f.at)
		}
	}
	for _, img := range f.images {
		if img.dirty {
			f.decide(img)
		}
	}
	f.decidePrunes()
	if f.at.Sub(f.sampledAt) >= history.Step {
		f.sample(f.at)
	}
	if f.changedMembers {
		f.changedMembers = false
		f.Changes.Mark(readapi.TopicMembers)
	}
}

// MemberNames returns the names of all members.
func (f *Fleet) MemberNames() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := make([]string, len(f.members))
	for i, m := range f.members {
		names[i] = m.name()
	}
	return names
}

// AddMember adds a MemberCluster that has not reported yet.
func (f *Fleet) AddMember(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := newMember(name, nil)
	m.neverReported = true
	m.object.CreationTimestamp = metav1.NewTime(f.at)
	m.policy, m.source, _ = f.policy.ForMember(m.name(), nil)
	m.concurrency = int32(policy.ConcurrencyAt(m.policy, f.at))
	f.members = append(f.members, m)
	slices.SortFunc(f.members, func(a, b *member) int { return strings.Compare(a.name(), b.name()) })
	f.report(m, f.at)
	f.Changes.Mark(readapi.TopicMembers)
}

// ReportMember has a member report for the first time.
func (f *Fleet) ReportMember(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.findMember(name)
	m.neverReported = false
	f.report(m, f.at)
	f.Changes.Mark(readapi.TopicMembers)
}
