//go:build linux

package faults

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// KillPosition is when an agent is killed, relative to a write of its own.
type KillPosition string

// The positions at which an agent can be killed.
const (
	BeforeWrite KillPosition = "before"
	AfterWrite  KillPosition = "after"
)

// KillPoint is a moment at which an agent can be killed.
type KillPoint struct {
	Step     Step
	Position KillPosition
}

// maxKillRuns bounds how often a scenario is repeated for points that it has not reached:
// the death at one point can keep the scenario from reaching another.
const maxKillRuns = 8

// KillSweep repeats a scenario and kills the agent at one point of it after the other. The
// next agent continues where the killed one left off.
type KillSweep struct {
	Env *testenv.Env
	// StepsOf names what a write does; a write of the ledger can do several things. It is
	// called before the write is stored.
	StepsOf func(Write) []Step
	// OnStored is called with each answered write, if set.
	OnStored func(Write)

	mu       sync.Mutex
	seen     map[Step]bool
	reached  map[KillPoint]bool
	due      func(KillPoint) bool
	inFlight map[agentWrite][]Step
	deaths   []KillPoint // of the current run
	agent    *FaultyAgent
}

// agentWrite identifies a write of one agent.
type agentWrite struct {
	agent  *FaultyAgent
	number int
}

// LearnSteps runs the scenario undisturbed and returns its steps, sorted.
func (s *KillSweep) LearnSteps(t *testing.T, scenario func(*testing.T)) []Step {
	t.Helper()
	s.reached = map[KillPoint]bool{}
	s.runScenario(t, func(KillPoint) bool { return false }, scenario)
	return slices.Sorted(maps.Keys(s.seen))
}

// KillPoints returns both points of each step.
func KillPoints(steps []Step) []KillPoint {
	points := make([]KillPoint, 0, 2*len(steps))
	for _, step := range steps {
		points = append(points, KillPoint{step, BeforeWrite}, KillPoint{step, AfterWrite})
	}
	return points
}

// KillAtEach repeats the scenario until agents were killed at all points, many of them in
// one run. A few may remain after a run that reaches none of them: some writes depend on which of
// two events comes first.
func (s *KillSweep) KillAtEach(t *testing.T, points []KillPoint, scenario func(*testing.T)) {
	t.Helper()
	remaining, runs, mayRemain := points, 0, max(2, len(points)/5)
	for idle := false; runs < maxKillRuns && len(remaining) > 0 && !t.Failed() && (!idle || len(remaining) > mayRemain); runs++ {
		s.runScenario(t, func(p KillPoint) bool { return slices.Contains(remaining, p) }, scenario)
		now := s.unreached(points)
		idle, remaining = len(now) == len(remaining), now
	}
	assert.LessOrEqual(t, len(remaining), mayRemain, "no agent was killed at %v", remaining)
	t.Logf("COVERED: agents were killed at %d of %d points in %d runs; not reached: %v", len(points)-len(remaining), len(points), runs, remaining)
}

// KillAtEachAlone is KillAtEach with a single death in each run. A point that its run does
// not reach is left to KillAtEach.
func (s *KillSweep) KillAtEachAlone(t *testing.T, points []KillPoint, scenario func(*testing.T)) {
	t.Helper()
	for _, point := range points {
		s.runScenario(t, func(p KillPoint) bool { return p == point }, scenario)
		if t.Failed() {
			return
		}
	}
}

func (s *KillSweep) runScenario(t *testing.T, due func(KillPoint) bool, scenario func(*testing.T)) {
	t.Helper()
	s.seen, s.inFlight, s.deaths, s.due = map[Step]bool{}, map[agentWrite][]Step{}, nil, due
	start := time.Now()
	defer func() { require.NoError(t, s.stopAgent(t.Context())) }()
	scenario(t)
	t.Logf("scenario with %d deaths: %d steps, %.1f s", len(s.deaths), len(s.seen), time.Since(start).Seconds())
}

func (s *KillSweep) unreached(points []KillPoint) []KillPoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(points), func(p KillPoint) bool { return s.reached[p] })
}

// AwaitCondition polls until a condition holds, and replaces killed agents meanwhile. It fails the
// test with what describe returns.
func (s *KillSweep) AwaitCondition(t *testing.T, what string, holds func() bool, describe func() string) {
	t.Helper()
	if !testenv.AwaitCondition(t, func() bool { s.EnsureAgent(t); return holds() }) {
		require.Failf(t, "timed out waiting for "+what, "agents were killed at %v\n%s", s.Deaths(), describe())
	}
}

// EnsureAgent starts an agent unless one runs.
func (s *KillSweep) EnsureAgent(t *testing.T) {
	t.Helper()
	if s.agent != nil && s.agent.ExitError() == nil {
		return
	}
	require.NoError(t, s.stopAgent(t.Context()))
	agent, err := RunAgent(t.Context(), s.Env, WriteHooks{Before: s.killHook(BeforeWrite), After: s.killHook(AfterWrite)}, program.Options{})
	require.NoError(t, err)
	s.agent = agent
}

// stopAgent ends the agent and deletes its Lease: its successor need not wait.
func (s *KillSweep) stopAgent(ctx context.Context) error {
	if s.agent != nil {
		s.agent.KillAndWait()
	}
	s.agent = nil
	return program.DeleteAgentLease(ctx, s.Env.Client())
}

// Agent returns the agent that was started last; nil for none.
func (s *KillSweep) Agent() *FaultyAgent { return s.agent }

// Deaths returns the points at which agents were killed in the current run, in order.
func (s *KillSweep) Deaths() []KillPoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.deaths)
}

// killHook kills the agent at points that are due and were not reached yet.
func (s *KillSweep) killHook(position KillPosition) func(*FaultyAgent, Write) error {
	return func(agent *FaultyAgent, w Write) error {
		if position == AfterWrite && s.OnStored != nil {
			s.OnStored(w)
		}
		if !s.isDeath(agent, position, w) {
			return nil
		}
		agent.Kill()
		<-agent.Done()
		return DropConnection()
	}
}

func (s *KillSweep) isDeath(agent *FaultyAgent, position KillPosition, w Write) bool {
	if position == AfterWrite && w.Status >= 300 {
		return false // nothing was stored
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := agentWrite{agent, w.N}
	if position == BeforeWrite {
		s.inFlight[key] = s.StepsOf(w)
	}
	steps, isDue := s.inFlight[key], false
	for _, step := range steps {
		s.seen[step] = true
		point := KillPoint{step, position}
		isDue = isDue || !s.reached[point] && s.due(point)
	}
	if !isDue {
		return false
	}
	for _, step := range steps {
		s.reached[KillPoint{step, position}] = true
		s.deaths = append(s.deaths, KillPoint{step, position})
	}
	return true
}
