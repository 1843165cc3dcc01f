//go:build linux

package acquire

import (
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

// mostPoints is at how many an agent is killed where time is short.
const mostPoints = 40

// sweep kills the agents of one story one after another.
type sweep struct {
	mu     sync.Mutex
	seen   map[mortal.Step]bool
	killed map[point]bool
	due    map[point]bool
	deaths int
	died   []point // in the story that is being told
	ns     string
	agent  *mortal.Agent
}

// TestKilledAtEveryWrite tells a story undisturbed to learn its writes, and then
// again with the agent killed at points of it, each time at another, and the next
// agent going on. With OT_FLEET_LONG these are all points.
func TestKilledAtEveryWrite(t *testing.T) {
	s := &sweep{seen: map[mortal.Step]bool{}, killed: map[point]bool{}}
	began := time.Now()
	s.tell(t)
	story := slices.Sorted(maps.Keys(s.seen))
	t.Logf("told undisturbed: %d steps, %.1f s", len(story), time.Since(began).Seconds())
	wantEveryKind(t, story)

	wanted := choose(story)
	for _, at := range [][]position{{before}, {after}, {before, after}, {before, after}} {
		left := s.left(wanted)
		if len(left) == 0 || t.Failed() {
			break
		}
		s.due = map[point]bool{}
		for _, p := range left {
			s.due[p] = slices.Contains(at, p.at)
		}
		began, deaths := time.Now(), s.deaths
		s.tell(t)
		t.Logf("told with deaths %v: %d deaths, %.1f s", at, s.deaths-deaths, time.Since(began).Seconds())
	}
	left := s.left(wanted)
	// A status that is only stored when one event comes before another is met by
	// chance.
	assert.LessOrEqual(t, len(left), len(wanted)/5, "no agent was killed at these points: %v", left)
	t.Logf("COVERED: %d of %d points wanted, of %d; %d deaths; not met: %v", len(wanted)-len(left), len(wanted), 2*len(story), s.deaths, left)
}

// choose takes points of each kind of write in turn.
func choose(story []mortal.Step) []point {
	kinds := map[string][]point{}
	for _, st := range story {
		if long() || !others(st) {
			kinds[st.Kind()] = append(kinds[st.Kind()], point{st, before}, point{st, after})
		}
	}
	var chosen []point
	for n := 0; ; n++ {
		were := len(chosen)
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			if n < len(kinds[kind]) && (long() || len(chosen) < mostPoints) {
				chosen = append(chosen, kinds[kind][n])
			}
		}
		if len(chosen) == were {
			return chosen
		}
	}
}

func (s *sweep) left(of []point) []point {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(of), func(p point) bool { return s.killed[p] })
}

// hook kills the agent at points that are due.
func (s *sweep) hook(at position) func(*mortal.Agent, proxy.Write) error {
	return func(m *mortal.Agent, w proxy.Write) error {
		if at == after && w.Status >= 300 {
			return nil // nothing was stored
		}
		if !s.dies(point{stepOf(w), at}) {
			return nil
		}
		m.Kill()
		<-m.Done()
		return proxy.Lose()
	}
}

func (s *sweep) dies(p point) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[p.step] = true
	if !s.due[p] || s.killed[p] {
		return false
	}
	s.killed[p] = true
	s.deaths++
	s.died = append(s.died, p)
	return true
}

// keepAlive starts the next agent where the last one has died.
func (s *sweep) keepAlive(t *testing.T) {
	t.Helper()
	if s.agent != nil && !s.agent.Gone() {
		return
	}
	s.bury(t)
	m, err := mortal.Run(t.Context(), place, mortal.Hooks{Before: s.hook(before), After: s.hook(after)}, agent.Options{})
	require.NoError(t, err)
	s.agent = m
}

func (s *sweep) bury(t *testing.T) {
	t.Helper()
	if s.agent != nil {
		s.agent.End()
	}
	s.agent = nil
	require.NoError(t, mortal.Bury(t.Context(), place))
}

// await waits for something that needs an agent.
func (s *sweep) await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	began, deaths := time.Now(), s.deaths
	if !scene.Await(t, func() bool { s.keepAlive(t); return holds() }) {
		require.Fail(t, "still waiting for: "+what, s.situation(t))
	}
	if took := time.Since(began); took > 5*time.Second && s.deaths == deaths {
		t.Logf("waited %.1f s for %s, with no death meanwhile", took.Seconds(), what)
	}
}

// wantEveryKind wants a story with every kind of write that the agent makes for
// machines and their images.
func wantEveryKind(t *testing.T, story []mortal.Step) {
	t.Helper()
	kinds := map[string]bool{}
	var texts []string
	for _, st := range story {
		if !others(st) {
			kinds[st.Kind()] = true
		}
		texts = append(texts, string(st))
	}
	t.Logf("the story:\n%s", strings.Join(texts, "\n"))
	want := []string{
		"acquire", "add finalizer", "delete datavolumes", "delete volumesnapshots", "patch secrets", "patch virtualmachines", "pin",
		"post datavolumes", "post vmdiskimages", "post volumesnapshots", "remove finalizer",
		"store Deleting image", "store Queued image", "store Succeeded image", "store Syncing image", "store Terminating image",
		"store machine with nothing pinned", "store machine with root disk", "tear down image",
	}
	for _, kind := range want {
		assert.True(t, kinds[kind], "the story has no write of kind %q", kind)
	}
}
