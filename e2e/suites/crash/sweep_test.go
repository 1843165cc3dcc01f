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

// killSweep kills the agents of one story after another, at every point of it once.
type killSweep struct {
	namer stepNamer

	mu sync.Mutex
	// seen are the steps that any agent has taken or tried to take.
	seen map[faults.Step]bool
	// killed are the points at which an agent was killed.
	killed map[killPoint]bool
	// mayKill tells whether the current run is to end at a point.
	mayKill func(killPoint) bool
	writes  int
	deaths  int
	agent   *faults.FaultyAgent
	// stepsByWrite of the writes under way, given before they are stored.
	stepsByWrite map[agentWrite][]faults.Step
}

// agentWrite is one of an agent's, by its number.
type agentWrite struct {
	agent  *faults.FaultyAgent
	number int
}

// maxMissedPoints is how many points may be left: those of a status that is only stored
// when one event comes before another.
const maxMissedPoints = 2

// TestAgentKilledAtEveryWrite tells a story undisturbed to learn its writes, and then
// again and again, with the agent killed whenever it comes to a point of the
// sample at which none was killed yet. The next agent goes on. That ends: each death is at
// another point. What a death has made impossible in one telling, say because
// an import was done meanwhile, the next one comes to.
func TestAgentKilledAtEveryWrite(t *testing.T) {
	testScene.StorePolicy(t, map[string]string{"concurrency": "2", "retryLimit": "2", "retryBackoffDuration": "1s"})
	s := &killSweep{seen: map[faults.Step]bool{}, killed: map[killPoint]bool{}, stepsByWrite: map[agentWrite][]faults.Step{}}

	// What only one of two undisturbed tellings has is chance: which of two events
	// came first.
	s.mayKill = func(killPoint) bool { return false }
	began := time.Now()
	s.runStory(t)
	first := s.seen
	s.seen, s.writes = map[faults.Step]bool{}, 0
	s.runStory(t)
	var story []faults.Step
	for _, st := range slices.Sorted(maps.Keys(s.seen)) {
		if first[st] && !isEdgeStep(st) {
			story = append(story, st)
		}
	}
	t.Logf("told twice undisturbed: %d writes, %d steps, %.1f s", s.writes, len(story), time.Since(began).Seconds())
	requireEveryStepKind(t, story)
	wanted := selectPoints(story)
	spared := map[killPoint]bool{}
	for _, p := range allPoints(story) {
		spared[p] = !slices.Contains(wanted, p)
	}

	for _, run := range s.killRules(spared) {
		s.mayKill = run
		began, deaths := time.Now(), s.deaths
		s.runStory(t)
		t.Logf("told again: %d deaths, %.1f s; still alive at %v", s.deaths-deaths, time.Since(began).Seconds(), s.remainingPoints(wanted))
		if t.Failed() || len(s.remainingPoints(wanted)) == 0 {
			break
		}
	}
	assert.LessOrEqual(t, len(s.remainingPoints(wanted)), maxMissedPoints, "no agent was killed at these points: %v", s.remainingPoints(wanted))
	for _, k := range stepKinds(story) {
		for _, at := range []killPosition{beforeWrite, afterWrite} {
			assert.True(t, s.killedAtKind(k, at), "no agent was killed %s a write of kind %q", at, k)
		}
	}
	t.Logf("COVERED: %d of %d points wanted, of %d (%d steps of the story × 2 positions), %d with those that only a crash leads to; %d kinds of writes × 2; %d deaths",
		len(wanted)-len(s.remainingPoints(wanted)), len(wanted), 2*len(story), len(story), len(s.killed), len(stepKinds(story)), s.deaths)
}

// allPoints are all points of a story.
func allPoints(story []faults.Step) []killPoint {
	var all []killPoint
	for _, st := range story {
		all = append(all, killPoint{st, beforeWrite}, killPoint{st, afterWrite})
	}
	return all
}

// selectPoints is at which points of a story an agent is to be killed: with time for
// it at all of them, otherwise on one side of each step, in turn among the steps
// of one kind, and on both sides of a step that is the only one of its kind.
func selectPoints(story []faults.Step) []killPoint {
	if isLongRun() {
		return allPoints(story)
	}
	kinds := map[string][]faults.Step{}
	for _, st := range story {
		kinds[st.Kind()] = append(kinds[st.Kind()], st)
	}
	var chosen []killPoint
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		steps := kinds[kind]
		for i, st := range steps {
			if len(steps) == 1 || i%2 == 0 {
				chosen = append(chosen, killPoint{st, beforeWrite})
			}
			if len(steps) == 1 || i%2 == 1 {
				chosen = append(chosen, killPoint{st, afterWrite})
			}
		}
	}
	return chosen
}

// isEdgeStep tells the writes that a story may have at its beginning or its end: the
// page of the report comes with the first image and goes with the last, a while
// after that.
func isEdgeStep(st faults.Step) bool {
	return st.Kind() == "create clusterreports" || st.Kind() == "delete clusterreports"
}

// killRules are the tellings, in which agents die at no point that is spared. In the
// default run deaths are many in each; in the long one there is first a telling
// for every single point, with one death.
func (s *killSweep) killRules(spared map[killPoint]bool) []func(killPoint) bool {
	var runs []func(killPoint) bool
	if isLongRun() {
		for _, st := range slices.Sorted(maps.Keys(s.seen)) {
			for _, at := range []killPosition{beforeWrite, afterWrite} {
				runs = append(runs, func(p killPoint) bool { return p == killPoint{st, at} })
			}
		}
	}
	runs = append(runs,
		func(p killPoint) bool { return p.position == beforeWrite && !spared[p] },
		func(p killPoint) bool { return p.position == afterWrite && !spared[p] })
	// For what is left: a step that the deaths of others have kept from happening.
	for range 8 {
		runs = append(runs, func(p killPoint) bool { return !spared[p] })
	}
	return runs
}

func (s *killSweep) remainingPoints(of []killPoint) []killPoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(of), func(p killPoint) bool { return s.killed[p] })
}

func (s *killSweep) killedAtKind(kind string, at killPosition) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.killed {
		if p.position == at && p.step.Kind() == kind {
			return true
		}
	}
	return false
}

// killHook kills the agent at points that none was killed at.
func (s *killSweep) killHook(at killPosition) func(*faults.FaultyAgent, faults.Write) error {
	return func(m *faults.FaultyAgent, w faults.Write) error {
		if at == afterWrite {
			s.namer.recordStored(w)
		}
		if !s.shouldDie(m, at, w) {
			return nil
		}
		m.Kill()
		<-m.Done()
		return faults.DropConnection()
	}
}

func (s *killSweep) shouldDie(m *faults.FaultyAgent, at killPosition, w faults.Write) bool {
	if at == afterWrite && w.Status >= 300 {
		return false // nothing was stored
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if at == beforeWrite {
		s.writes++
		s.stepsByWrite[agentWrite{m, w.N}] = s.namer.stepsOf(w)
	}
	steps := s.stepsByWrite[agentWrite{m, w.N}]
	due := false
	for _, st := range steps {
		s.seen[st] = true
		p := killPoint{st, at}
		due = due || !s.killed[p] && s.mayKill(p)
	}
	if !due {
		return false
	}
	for _, st := range steps {
		s.killed[killPoint{st, at}] = true
	}
	s.deaths++
	return true
}

// restartDeadAgents starts the next agent where the last one has died.
func (s *killSweep) restartDeadAgents(t *testing.T) {
	t.Helper()
	if s.agent != nil && !s.agent.HasEnded() {
		return
	}
	require.NoError(t, s.replaceDeadAgent(t.Context()))
	m, err := faults.RunAgent(t.Context(), testScene, faults.WriteHooks{Before: s.killHook(beforeWrite), After: s.killHook(afterWrite)}, program.Options{})
	require.NoError(t, err)
	s.agent = m
}

func (s *killSweep) replaceDeadAgent(ctx context.Context) error {
	if s.agent != nil {
		s.agent.KillAndWait()
	}
	s.agent = nil
	return program.DeleteAgentLease(ctx, testScene.Client())
}

// awaitWithAgent waits for something that needs an agent.
func (s *killSweep) awaitWithAgent(t *testing.T, what string, holds func() bool) {
	t.Helper()
	began, deaths := time.Now(), s.deaths
	require.True(t, testenv.Await(t, func() bool { s.restartDeadAgents(t); return holds() }), "still waiting for: %s", what)
	if took := time.Since(began); took > 5*time.Second && s.deaths == deaths {
		t.Logf("waited %.1f s for %s, with no death meanwhile", took.Seconds(), what)
	}
}

func stepKinds(steps []faults.Step) []string {
	seen := map[string]bool{}
	for _, st := range steps {
		seen[st.Kind()] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// requireEveryStepKind wants a story with every kind of write that the agent makes.
func requireEveryStepKind(t *testing.T, story []faults.Step) {
	t.Helper()
	want := []string{
		"add finalizer", "admit", "create datavolumes", "create syncledgers", "create volumesnapshots",
		"delete datavolumes", "delete persistentvolumeclaims", "delete volumesnapshots", "free", "mark as ended",
		"put clusterreports", "remove finalizer", "store Deleting status", "store Queued status", "store Succeeded status",
		"store Syncing status", "store policy",
	}
	got := stepKinds(story)
	require.Equal(t, want, got, "the kinds of writes of the story, which are to be all of the agent's; its steps:\n%s", strings.Join(stepTexts(story), "\n"))
}

func stepTexts(steps []faults.Step) []string {
	var all []string
	for _, st := range steps {
		all = append(all, fmt.Sprint(st))
	}
	return all
}
