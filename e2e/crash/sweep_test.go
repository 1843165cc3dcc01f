//go:build linux

package crash

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/mortal"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// position is when an agent is killed, seen from a write of its own.
type position string

const (
	before position = "before"
	after  position = "after"
)

// point is a write and a position: a moment in which an agent can die.
type point struct {
	step mortal.Step
	at   position
}

// sweep kills the agents of one story after another, at every point of it once.
type sweep struct {
	namer namer

	mu sync.Mutex
	// seen are the steps that any agent has taken or tried to take.
	seen map[mortal.Step]bool
	// killed are the points at which an agent was killed.
	killed map[point]bool
	// mayKill tells whether the current run is to end at a point.
	mayKill func(point) bool
	writes  int
	deaths  int
	agent   *mortal.Agent
	// names of the writes under way, given before they are stored.
	names map[write][]mortal.Step
}

// write is one of an agent's, by its number.
type write struct {
	by *mortal.Agent
	n  int
}

// chance is how many points may be left: those of a status that is only stored
// when one event comes before another.
const chance = 2

// TestKilledAtEveryWrite tells a story undisturbed to learn its writes, and then
// again and again, with the agent killed whenever it comes to a point of the
// sample at which none was killed yet. The next agent goes on. That ends: each death is at
// another point. What a death has made impossible in one telling, say because
// an import was done meanwhile, the next one comes to.
func TestKilledAtEveryWrite(t *testing.T) {
	place.StorePolicy(t, map[string]string{"concurrency": "2", "retryLimit": "2", "retryBackoffDuration": "1s"})
	s := &sweep{seen: map[mortal.Step]bool{}, killed: map[point]bool{}, names: map[write][]mortal.Step{}}

	// What only one of two undisturbed tellings has is chance: which of two events
	// came first.
	s.mayKill = func(point) bool { return false }
	began := time.Now()
	s.tell(t)
	first := s.seen
	s.seen, s.writes = map[mortal.Step]bool{}, 0
	s.tell(t)
	var story []mortal.Step
	for _, st := range slices.Sorted(maps.Keys(s.seen)) {
		if first[st] && !atItsEdge(st) {
			story = append(story, st)
		}
	}
	t.Logf("told twice undisturbed: %d writes, %d steps, %.1f s", s.writes, len(story), time.Since(began).Seconds())
	wantEveryKind(t, story)
	wanted := sample(story)
	spared := map[point]bool{}
	for _, p := range pointsOf(story) {
		spared[p] = !slices.Contains(wanted, p)
	}

	for _, run := range s.runs(spared) {
		s.mayKill = run
		began, deaths := time.Now(), s.deaths
		s.tell(t)
		t.Logf("told again: %d deaths, %.1f s; still alive at %v", s.deaths-deaths, time.Since(began).Seconds(), s.left(wanted))
		if t.Failed() || len(s.left(wanted)) == 0 {
			break
		}
	}
	assert.LessOrEqual(t, len(s.left(wanted)), chance, "no agent was killed at these points: %v", s.left(wanted))
	for _, k := range kinds(story) {
		for _, at := range []position{before, after} {
			assert.True(t, s.killedAtKind(k, at), "no agent was killed %s a write of kind %q", at, k)
		}
	}
	t.Logf("COVERED: %d of %d points wanted, of %d (%d steps of the story × 2 positions), %d with those that only a crash leads to; %d kinds of writes × 2; %d deaths",
		len(wanted)-len(s.left(wanted)), len(wanted), 2*len(story), len(story), len(s.killed), len(kinds(story)), s.deaths)
}

// pointsOf are all points of a story.
func pointsOf(story []mortal.Step) []point {
	var all []point
	for _, st := range story {
		all = append(all, point{st, before}, point{st, after})
	}
	return all
}

// sample is at which points of a story an agent is to be killed: with time for
// it at all of them, otherwise on one side of each step, in turn among the steps
// of one kind, and on both sides of a step that is the only one of its kind.
func sample(story []mortal.Step) []point {
	if long() {
		return pointsOf(story)
	}
	kinds := map[string][]mortal.Step{}
	for _, st := range story {
		kinds[st.Kind()] = append(kinds[st.Kind()], st)
	}
	var chosen []point
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		steps := kinds[kind]
		for i, st := range steps {
			if len(steps) == 1 || i%2 == 0 {
				chosen = append(chosen, point{st, before})
			}
			if len(steps) == 1 || i%2 == 1 {
				chosen = append(chosen, point{st, after})
			}
		}
	}
	return chosen
}

// atItsEdge tells the writes that a story may have at its beginning or its end: the
// page of the report comes with the first image and goes with the last, a while
// after that.
func atItsEdge(st mortal.Step) bool {
	return st.Kind() == "create clusterreports" || st.Kind() == "delete clusterreports"
}

// runs are the tellings, in which agents die at no point that is spared. In the
// default run deaths are many in each; in the long one there is first a telling
// for every single point, with one death.
func (s *sweep) runs(spared map[point]bool) []func(point) bool {
	var runs []func(point) bool
	if long() {
		for _, st := range slices.Sorted(maps.Keys(s.seen)) {
			for _, at := range []position{before, after} {
				runs = append(runs, func(p point) bool { return p == point{st, at} })
			}
		}
	}
	runs = append(runs,
		func(p point) bool { return p.at == before && !spared[p] },
		func(p point) bool { return p.at == after && !spared[p] })
	// For what is left: a step that the deaths of others have kept from happening.
	for range 8 {
		runs = append(runs, func(p point) bool { return !spared[p] })
	}
	return runs
}

func (s *sweep) left(of []point) []point {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(of), func(p point) bool { return s.killed[p] })
}

func (s *sweep) killedAtKind(kind string, at position) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.killed {
		if p.at == at && p.step.Kind() == kind {
			return true
		}
	}
	return false
}

// hook kills the agent at points that none was killed at.
func (s *sweep) hook(at position) func(*mortal.Agent, proxy.Write) error {
	return func(m *mortal.Agent, w proxy.Write) error {
		if at == after {
			s.namer.stored(w)
		}
		if !s.dies(m, at, w) {
			return nil
		}
		m.Kill()
		<-m.Done()
		return proxy.Lose()
	}
}

func (s *sweep) dies(m *mortal.Agent, at position, w proxy.Write) bool {
	if at == after && w.Status >= 300 {
		return false // nothing was stored
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if at == before {
		s.writes++
		s.names[write{m, w.N}] = s.namer.of(w)
	}
	steps := s.names[write{m, w.N}]
	due := false
	for _, st := range steps {
		s.seen[st] = true
		p := point{st, at}
		due = due || !s.killed[p] && s.mayKill(p)
	}
	if !due {
		return false
	}
	for _, st := range steps {
		s.killed[point{st, at}] = true
	}
	s.deaths++
	return true
}

// keepAlive starts the next agent where the last one has died.
func (s *sweep) keepAlive(t *testing.T) {
	t.Helper()
	if s.agent != nil && !s.agent.Gone() {
		return
	}
	require.NoError(t, s.bury(t.Context()))
	m, err := mortal.Run(t.Context(), place, mortal.Hooks{Before: s.hook(before), After: s.hook(after)}, agent.Options{})
	require.NoError(t, err)
	s.agent = m
}

func (s *sweep) bury(ctx context.Context) error {
	if s.agent != nil {
		s.agent.End()
	}
	s.agent = nil
	return mortal.Bury(ctx, place)
}

// await waits for something that needs an agent.
func (s *sweep) await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	began, deaths := time.Now(), s.deaths
	require.True(t, scene.Await(t, func() bool { s.keepAlive(t); return holds() }), "still waiting for: %s", what)
	if took := time.Since(began); took > 5*time.Second && s.deaths == deaths {
		t.Logf("waited %.1f s for %s, with no death meanwhile", took.Seconds(), what)
	}
}

func kinds(steps []mortal.Step) []string {
	seen := map[string]bool{}
	for _, st := range steps {
		seen[st.Kind()] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// wantEveryKind wants a story with every kind of write that the agent makes.
func wantEveryKind(t *testing.T, story []mortal.Step) {
	t.Helper()
	want := []string{
		"add finalizer", "admit", "create datavolumes", "create syncledgers", "create volumesnapshots",
		"delete datavolumes", "delete persistentvolumeclaims", "delete volumesnapshots", "free", "mark as ended",
		"put clusterreports", "remove finalizer", "store Deleting status", "store Queued status", "store Succeeded status",
		"store Syncing status", "store policy",
	}
	got := kinds(story)
	require.Equal(t, want, got, "the kinds of writes of the story, which are to be all of the agent's; its steps:\n%s", strings.Join(texts(story), "\n"))
}

func texts(steps []mortal.Step) []string {
	var all []string
	for _, st := range steps {
		all = append(all, fmt.Sprint(st))
	}
	return all
}
