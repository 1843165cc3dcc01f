package modelcheck_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/apitest/modelcheck"
)

// counters is a model of two counters that are equivalent: each step increments one, up
// to a limit. It is at rest when both are at the limit.
type counters struct {
	limit uint8
	// forbidden sum of both.
	forbidden uint8
	// stuckAt: no counter leaves this value.
	stuckAt uint8
}

type state = [2]uint8

func (counters) InitialState() state { return state{} }

func (counters) Canonical(s *state) state { return state{min(s[0], s[1]), max(s[0], s[1])} }

func (c counters) ForEachStep(s *state, visit func(modelcheck.Step[state])) {
	for i := range s {
		if s[i] == c.limit || s[i] == c.stuckAt {
			continue
		}
		next := *s
		next[i]++
		step := modelcheck.Step[state]{Next: next, Describe: func() string { return fmt.Sprint("increment ", i) }}
		if next[0]+next[1] == c.forbidden {
			step.Violation = "forbidden sum"
		}
		visit(step)
	}
}

func (c counters) IsAtRest(s *state) bool { return *s == state{c.limit, c.limit} }

func (counters) Format(s *state) string { return fmt.Sprint(*s) }

const never = 255

func explore(t *testing.T, c counters, options modelcheck.Options[state]) modelcheck.Result {
	t.Helper()
	return modelcheck.Explore(t, c, options)
}

func TestExploreVisitsEveryState(t *testing.T) {
	got := explore(t, counters{limit: 200, forbidden: never, stuckAt: never}, modelcheck.Options[state]{
		Expected: []modelcheck.ExpectedState[state]{
			{Name: "both at 100", IsReached: func(s *state) bool { return *s == state{100, 100} }},
			{Name: "one beyond the limit", IsReached: func(s *state) bool { return s[1] > 200 }},
		},
		OnlyViolation: "another",
	})
	assert.Empty(t, got.Violation)
	assert.EqualValues(t, 201*202/2, got.States, "equivalent states are visited once")
	assert.Equal(t, 400, got.Depth)
	assert.Equal(t, []string{"one beyond the limit"}, got.Unreached)
}

func TestExploreFindsShortestTrace(t *testing.T) {
	got := explore(t, counters{limit: 3, forbidden: 2, stuckAt: never}, modelcheck.Options[state]{})
	assert.Equal(t, "forbidden sum", got.Violation)
	assert.Equal(t, []string{"increment 0\n      [1 0]", "increment 1\n      [1 1]"}, got.Trace)
}

func TestExploreFindsDeadlock(t *testing.T) {
	stuck := counters{limit: 3, forbidden: never, stuckAt: 2}
	got := explore(t, stuck, modelcheck.Options[state]{})
	assert.Equal(t, modelcheck.Deadlock, got.Violation)
	assert.Empty(t, got.Trace, "not even the initial state comes to rest")
	assert.Empty(t, explore(t, stuck, modelcheck.Options[state]{SkipDeadlockSearch: true}).Violation)
}
