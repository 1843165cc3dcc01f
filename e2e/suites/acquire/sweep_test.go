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

	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// killPosition is when an agent is killed, seen from a write of its own.
type killPosition string

const (
	beforeWrite killPosition = "before"
	afterWrite  killPosition = "after"
)

// killPoint is a write and a position: a moment in which an agent can die.
type killPoint struct {
	step     faults.Step
	position killPosition
}

// maxPoints is at how many an agent is killed where time is short.
const maxPoints = 40

// killSweep kills the agents of one story one after another.
type killSweep struct {
	mu     sync.Mutex
	seen   map[faults.Step]bool
	killed map[killPoint]bool
	due    map[killPoint]bool
	deaths int
	died   []killPoint // in the story that is being told
	ns     string
	agent  *faults.FaultyAgent
}

// TestAgentKilledAtEveryWrite tells a story undisturbed to learn its writes, and then
// again with the agent killed at points of it, each time at another, and the next
// agent going on. With OT_FLEET_LONG these are all points.
func TestAgentKilledAtEveryWrite(t *testing.T) {
	s := &killSweep{seen: map[faults.Step]bool{}, killed: map[killPoint]bool{}}
	began := time.Now()
	s.runStory(t)
	story := slices.Sorted(maps.Keys(s.seen))
	t.Logf("told undisturbed: %d steps, %.1f s", len(story), time.Since(began).Seconds())
	requireEveryStepKind(t, story)

	wanted := selectPoints(story)
	for _, at := range [][]killPosition{{beforeWrite}, {afterWrite}, {beforeWrite, afterWrite}, {beforeWrite, afterWrite}} {
		left := s.remainingPoints(wanted)
		if len(left) == 0 || t.Failed() {
			break
		}
		s.due = map[killPoint]bool{}
		for _, p := range left {
			s.due[p] = slices.Contains(at, p.position)
		}
		began, deaths := time.Now(), s.deaths
		s.runStory(t)
		t.Logf("told with deaths %v: %d deaths, %.1f s", at, s.deaths-deaths, time.Since(began).Seconds())
	}
	left := s.remainingPoints(wanted)
	// A status that is only stored when one event comes before another is met by
	// chance.
	assert.LessOrEqual(t, len(left), len(wanted)/5, "no agent was killed at these points: %v", left)
	t.Logf("COVERED: %d of %d points wanted, of %d; %d deaths; not met: %v", len(wanted)-len(left), len(wanted), 2*len(story), s.deaths, left)
}

// selectPoints takes points of each kind of write in turn.
func selectPoints(story []faults.Step) []killPoint {
	kinds := map[string][]killPoint{}
	for _, st := range story {
		if isLongRun() || !isIrrelevantStep(st) {
			kinds[st.Kind()] = append(kinds[st.Kind()], killPoint{st, beforeWrite}, killPoint{st, afterWrite})
		}
	}
	var chosen []killPoint
	for n := 0; ; n++ {
		were := len(chosen)
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			if n < len(kinds[kind]) && (isLongRun() || len(chosen) < maxPoints) {
				chosen = append(chosen, kinds[kind][n])
			}
		}
		if len(chosen) == were {
			return chosen
		}
	}
}

func (s *killSweep) remainingPoints(of []killPoint) []killPoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(of), func(p killPoint) bool { return s.killed[p] })
}

// killHook kills the agent at points that are due.
func (s *killSweep) killHook(at killPosition) func(*faults.FaultyAgent, faults.Write) error {
	return func(m *faults.FaultyAgent, w faults.Write) error {
		if at == afterWrite && w.Status >= 300 {
			return nil // nothing was stored
		}
		if !s.shouldDie(killPoint{stepOf(w), at}) {
			return nil
		}
		m.Kill()
		<-m.Done()
		return faults.DropConnection()
	}
}

func (s *killSweep) shouldDie(p killPoint) bool {
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

// restartDeadAgents starts the next agent where the last one has died.
func (s *killSweep) restartDeadAgents(t *testing.T) {
	t.Helper()
	if s.agent != nil && !s.agent.HasEnded() {
		return
	}
	s.replaceDeadAgent(t)
	m, err := faults.RunAgent(t.Context(), testScene, faults.WriteHooks{Before: s.killHook(beforeWrite), After: s.killHook(afterWrite)}, program.Options{})
	require.NoError(t, err)
	s.agent = m
}

func (s *killSweep) replaceDeadAgent(t *testing.T) {
	t.Helper()
	if s.agent != nil {
		s.agent.KillAndWait()
	}
	s.agent = nil
	require.NoError(t, program.DeleteAgentLease(t.Context(), testScene.Client()))
}

// awaitWithAgent waits for something that needs an agent.
func (s *killSweep) awaitWithAgent(t *testing.T, what string, holds func() bool) {
	t.Helper()
	began, deaths := time.Now(), s.deaths
	if !testenv.Await(t, func() bool { s.restartDeadAgents(t); return holds() }) {
		require.Fail(t, "still waiting for: "+what, s.describeSituation(t))
	}
	if took := time.Since(began); took > 5*time.Second && s.deaths == deaths {
		t.Logf("waited %.1f s for %s, with no death meanwhile", took.Seconds(), what)
	}
}

// requireEveryStepKind wants a story with every kind of write that the agent makes for
// machines and their images.
func requireEveryStepKind(t *testing.T, story []faults.Step) {
	t.Helper()
	kinds := map[string]bool{}
	var texts []string
	for _, st := range story {
		if !isIrrelevantStep(st) {
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
