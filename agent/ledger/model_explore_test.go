package ledger_test

import (
	"hash/maphash"
	"strings"
	"testing"
)

// stateSet numbers the worlds that were met, in the order in which they were met. It
// keeps them in chunks, so that growing copies nothing.
type stateSet struct {
	seed   maphash.Seed
	chunks [][]clusterState
	size   uint32

	// table holds, by hash, the upper half of a hash and a number + 1. The former
	// spares most looks at a world that is another one.
	table []uint64
}

const chunkSize = 1 << 14

func newStateSet() *stateSet {
	return &stateSet{seed: maphash.MakeSeed(), table: make([]uint64, 1<<16)}
}

func (s *stateSet) stateAt(i uint32) *clusterState { return &s.chunks[i/chunkSize][i%chunkSize] }

func (s *stateSet) addState(w *clusterState) (number uint32, met bool) {
	if int(s.size)*2 > len(s.table) {
		old := s.table
		s.table = make([]uint64, 2*len(old))
		for _, e := range old {
			if e != 0 {
				place, _ := s.findPlace(s.stateAt(uint32(e) - 1))
				s.table[place] = e
			}
		}
	}
	place, mark := s.findPlace(w)
	if e := s.table[place]; e != 0 {
		return uint32(e) - 1, true
	}
	if s.size%chunkSize == 0 {
		s.chunks = append(s.chunks, make([]clusterState, 0, chunkSize))
	}
	last := len(s.chunks) - 1
	s.chunks[last] = append(s.chunks[last], *w)
	s.size++
	s.table[place] = mark | uint64(s.size)
	return s.size - 1, false
}

func (s *stateSet) findPlace(w *clusterState) (place, mark uint64) {
	hash := maphash.Comparable(s.seed, *w)
	mask := uint64(len(s.table) - 1)
	place, mark = hash&mask, hash>>32<<32
	for e := s.table[place]; e != 0 && (e>>32<<32 != mark || *s.stateAt(uint32(e) - 1) != *w); e = s.table[place] {
		place = (place + 1) & mask
	}
	return place, mark
}

// exploration is what came of a scenario.
type exploration struct {
	states, edges uint32
	depth         int
	// violation is the first that was found, breadth first, and trace the
	// shortest way to it.
	violation string
	trace     []string
	// unreached are the wanted states that were not met.
	unreached []string
}

// explore visits every state of a scenario, or stops at the first violation.
func explore(t *testing.T, s *scenario) exploration {
	t.Helper()
	first := s.initialState()
	first = first.canonical()
	met := newStateSet()
	met.addState(&first)
	parents := []uint32{0}
	var from, to []uint32
	var found exploration
	for i, layerEnd := uint32(0), uint32(1); i < met.size && found.violation == ""; i++ {
		if i == layerEnd {
			found.depth++
			layerEnd = met.size
		}
		w := *met.stateAt(i)
		s.forEachTransition(&w, func(m transition) {
			if found.violation != "" {
				return
			}
			c := m.next.canonical()
			n, known := met.addState(&c)
			if !known {
				parents = append(parents, i)
			}
			found.edges++
			if m.violation != "" && strings.HasPrefix(m.violation, s.onlyViolation) {
				found.violation = m.violation
				found.trace = s.replayTrace(met, parents, i, m)
				return
			}
			if !m.fault && !s.skipDeadlockSearch && n != i {
				from, to = append(from, i), append(to, n)
			}
		})
	}
	found.states = met.size
	for _, want := range s.expected {
		seen := false
		for i := uint32(0); i < met.size && !seen; i++ {
			seen = want.isReached(met.stateAt(i))
		}
		if !seen {
			found.unreached = append(found.unreached, want.name)
		}
	}
	if found.violation == "" && !s.skipDeadlockSearch {
		if lost, any := s.findDeadlock(met, from, to); any {
			found.violation = "a state from which no slot comes free any more"
			found.trace = s.replayTrace(met, parents, lost, transition{})
		}
	}
	t.Logf("%d states, %d steps, depth %d: %s", found.states, found.edges, found.depth, violationOrNone(found.violation))
	return found
}

func violationOrNone(violation string) string {
	if violation == "" {
		return "no violation"
	}
	return violation
}

// findDeadlock looks backwards from the good states for one that reaches none of them
// without a fault.
func (s *scenario) findDeadlock(met *stateSet, from, to []uint32) (uint32, bool) {
	starts := make([]uint32, met.size+1)
	for _, n := range to {
		starts[n+1]++
	}
	for i := range met.size {
		starts[i+1] += starts[i]
	}
	into := make([]uint32, len(from))
	filled := append([]uint32(nil), starts...)
	for e, n := range to {
		into[filled[n]] = from[e]
		filled[n]++
	}
	reaches := make([]bool, met.size)
	var queue []uint32
	for i := range met.size {
		if s.isAtRest(met.stateAt(i)) {
			reaches[i] = true
			queue = append(queue, i)
		}
	}
	for len(queue) > 0 {
		n := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, p := range into[starts[n]:starts[n+1]] {
			if !reaches[p] {
				reaches[p] = true
				queue = append(queue, p)
			}
		}
	}
	for i, ok := range reaches {
		if !ok {
			return uint32(i), true
		}
	}
	return 0, false
}

// replayTrace tells the way to a state, and the step that followed. The states of the
// search have their writers in a fixed order, so they are walked through anew,
// with each writer keeping its name.
func (s *scenario) replayTrace(met *stateSet, parents []uint32, last uint32, then transition) []string {
	var way []uint32
	for n := last; n != 0; n = parents[n] {
		way = append(way, n)
	}
	w := s.initialState()
	var trace []string
	take := func(want clusterState) {
		taken := false
		s.forEachTransition(&w, func(m transition) {
			if !taken && m.next.canonical() == want {
				taken = true
				trace = append(trace, m.describe()+"\n      "+s.formatState(&m.next))
				w = m.next
			}
		})
	}
	for i := len(way) - 1; i >= 0; i-- {
		take(*met.stateAt(way[i]))
	}
	if then.violation != "" {
		take(then.next.canonical())
	}
	return trace
}

func formatTrace(trace []string) string { return "\n  - " + strings.Join(trace, "\n  - ") }
