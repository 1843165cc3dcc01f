// Package modelcheck visits every state of a small model of the system, breadth
// first. It reports the first violated invariant, with the shortest trace to it,
// and states from which the model can no longer come to rest.
package modelcheck

import (
	"runtime/debug"
	"strings"
	"testing"
)

// All that a model allocates is kept.
func init() { debug.SetGCPercent(400) }

// Model describes what can happen.
type Model[S comparable] interface {
	InitialState() S
	// Canonical returns the representative of all states that are equivalent to a
	// state, such as those that differ only in which of two agents is which.
	Canonical(*S) S
	// ForEachStep calls visit with everything that can happen next.
	ForEachStep(state *S, visit func(Step[S]))
	// IsAtRest reports whether a state is one that must stay reachable.
	IsAtRest(*S) bool
	// Format shows a state in one line.
	Format(*S) string
}

// Step is something that can happen in a state.
type Step[S comparable] struct {
	Next S
	// Violation of an invariant, by the step or in Next; empty for none.
	Violation string
	// Fault: the step need not happen; the model must come to rest without it.
	Fault bool
	// Describe is called for traces only.
	Describe func() string
}

// ExpectedState is a state that a model has to reach, or it shows less than it
// seems to.
type ExpectedState[S comparable] struct {
	Name      string
	IsReached func(*S) bool
}

// Options of Explore.
type Options[S comparable] struct {
	Expected []ExpectedState[S]
	// OnlyViolation ignores violations without this prefix.
	OnlyViolation string
	// SkipDeadlockSearch saves time and memory.
	SkipDeadlockSearch bool
}

// Deadlock is the violation of a model that cannot come to rest.
const Deadlock = "a state from which the model does not come to rest without a fault"

// Result of Explore.
type Result struct {
	States, Steps uint32
	Depth         int
	// Violation is the first one; empty for none.
	Violation string
	// Trace is the shortest way to it.
	Trace []string
	// Unreached are the names of the expected states that were not reached.
	Unreached []string
}

// FormatTrace returns the trace as a list.
func (r Result) FormatTrace() string { return "\n  - " + strings.Join(r.Trace, "\n  - ") }

// Explore visits every state of a model, or stops at the first violation.
func Explore[S comparable](t *testing.T, model Model[S], options Options[S]) Result {
	t.Helper()
	initial := model.InitialState()
	initial = model.Canonical(&initial)
	visited := newStateSet[S]()
	visited.add(&initial)
	e := &explorer[S]{model: model, visited: visited, parents: []uint32{0}}
	var result Result
	for i, layerEnd := uint32(0), uint32(1); i < visited.size && result.Violation == ""; i++ {
		if i == layerEnd {
			result.Depth++
			layerEnd = visited.size
		}
		state := *visited.get(i)
		model.ForEachStep(&state, func(step Step[S]) {
			if result.Violation != "" {
				return
			}
			result.Steps++
			next := model.Canonical(&step.Next)
			number, known := visited.add(&next)
			if !known {
				e.parents = append(e.parents, i)
			}
			if step.Violation != "" && strings.HasPrefix(step.Violation, options.OnlyViolation) {
				result.Violation = step.Violation
				result.Trace = e.replayTrace(i, &next)
				return
			}
			if !step.Fault && !options.SkipDeadlockSearch && number != i {
				e.from, e.to = append(e.from, i), append(e.to, number)
			}
		})
	}
	result.States = visited.size
	for _, expected := range options.Expected {
		if !e.isReached(expected) {
			result.Unreached = append(result.Unreached, expected.Name)
		}
	}
	if result.Violation == "" && !options.SkipDeadlockSearch {
		if deadlock, found := e.findDeadlock(); found {
			result.Violation = Deadlock
			result.Trace = e.replayTrace(deadlock, nil)
		}
	}
	t.Logf("%d states, %d steps, depth %d, violation %q", result.States, result.Steps, result.Depth, result.Violation)
	return result
}

type explorer[S comparable] struct {
	model   Model[S]
	visited *stateSet[S]
	// parents of the states, by number: from where each was first reached.
	parents []uint32
	// from and to are the steps that are no faults.
	from, to []uint32
}

func (e *explorer[S]) isReached(expected ExpectedState[S]) bool {
	for i := range e.visited.size {
		if expected.IsReached(e.visited.get(i)) {
			return true
		}
	}
	return false
}

// findDeadlock searches backwards from the states at rest for a state that reaches
// none of them without a fault.
func (e *explorer[S]) findDeadlock() (number uint32, found bool) {
	// starts[n] is where the predecessors of state n begin.
	starts := make([]uint32, e.visited.size+1)
	for _, n := range e.to {
		starts[n+1]++
	}
	for i := range e.visited.size {
		starts[i+1] += starts[i]
	}
	predecessors := make([]uint32, len(e.from))
	filled := append([]uint32(nil), starts...)
	for i, n := range e.to {
		predecessors[filled[n]] = e.from[i]
		filled[n]++
	}
	reachesRest := make([]bool, e.visited.size)
	var pending []uint32
	for i := range e.visited.size {
		if e.model.IsAtRest(e.visited.get(i)) {
			reachesRest[i] = true
			pending = append(pending, i)
		}
	}
	for len(pending) > 0 {
		n := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		for _, p := range predecessors[starts[n]:starts[n+1]] {
			if !reachesRest[p] {
				reachesRest[p] = true
				pending = append(pending, p)
			}
		}
	}
	for i, ok := range reachesRest {
		if !ok {
			return uint32(i), true
		}
	}
	return 0, false
}

// replayTrace describes the way to a state and, unless nil, one step further. It
// walks through the states anew: canonical states do not keep the names of agents.
func (e *explorer[S]) replayTrace(last uint32, further *S) []string {
	var path []S
	for n := last; n != 0; n = e.parents[n] {
		path = append([]S{*e.visited.get(n)}, path...)
	}
	if further != nil {
		path = append(path, *further)
	}
	state := e.model.InitialState()
	var trace []string
	for _, want := range path {
		taken := false
		current := state
		e.model.ForEachStep(&current, func(step Step[S]) {
			if !taken && e.model.Canonical(&step.Next) == want {
				taken = true
				trace = append(trace, step.Describe()+"\n      "+e.model.Format(&step.Next))
				state = step.Next
			}
		})
	}
	return trace
}
