package queue_test

import (
	"hash/maphash"
	"strings"
	"testing"
)

// set numbers the worlds that were met, in the order in which they were met. It
// keeps them in chunks, so that growing copies nothing.
type set struct {
	seed   maphash.Seed
	chunks [][]world
	size   uint32

	// table holds, by hash, the upper half of a hash and a number + 1. The former
	// spares most looks at a world that is another one.
	table []uint64
}

const chunk = 1 << 14

func newSet() *set { return &set{seed: maphash.MakeSeed(), table: make([]uint64, 1<<16)} }

func (s *set) at(i uint32) *world { return &s.chunks[i/chunk][i%chunk] }

func (s *set) add(w *world) (number uint32, met bool) {
	if int(s.size)*2 > len(s.table) {
		old := s.table
		s.table = make([]uint64, 2*len(old))
		for _, e := range old {
			if e != 0 {
				place, _ := s.place(s.at(uint32(e) - 1))
				s.table[place] = e
			}
		}
	}
	place, mark := s.place(w)
	if e := s.table[place]; e != 0 {
		return uint32(e) - 1, true
	}
	if s.size%chunk == 0 {
		s.chunks = append(s.chunks, make([]world, 0, chunk))
	}
	last := len(s.chunks) - 1
	s.chunks[last] = append(s.chunks[last], *w)
	s.size++
	s.table[place] = mark | uint64(s.size)
	return s.size - 1, false
}

func (s *set) place(w *world) (place, mark uint64) {
	hash := maphash.Comparable(s.seed, *w)
	mask := uint64(len(s.table) - 1)
	place, mark = hash&mask, hash>>32<<32
	for e := s.table[place]; e != 0 && (e>>32<<32 != mark || *s.at(uint32(e) - 1) != *w); e = s.table[place] {
		place = (place + 1) & mask
	}
	return place, mark
}

// explored is what came of a scenario.
type explored struct {
	states, edges uint32
	depth         int
	// violation is the first that was found, breadth first, and trace the
	// shortest way to it.
	violation string
	trace     []string
	// missed are the wanted states that were not met.
	missed []string
}

// explore visits every state of a scenario, or stops at the first violation.
func explore(t *testing.T, s *scenario) explored {
	t.Helper()
	first := s.start()
	first = first.canonical()
	met := newSet()
	met.add(&first)
	parents := []uint32{0}
	var from, to []uint32
	var found explored
	for i, layerEnd := uint32(0), uint32(1); i < met.size && found.violation == ""; i++ {
		if i == layerEnd {
			found.depth++
			layerEnd = met.size
		}
		w := *met.at(i)
		s.moves(&w, func(m move) {
			if found.violation != "" {
				return
			}
			c := m.next.canonical()
			n, known := met.add(&c)
			if !known {
				parents = append(parents, i)
			}
			found.edges++
			if m.violation != "" && strings.HasPrefix(m.violation, s.finding) {
				found.violation = m.violation
				found.trace = s.replay(met, parents, i, m)
				return
			}
			if !m.fault && !s.noProgress && n != i {
				from, to = append(from, i), append(to, n)
			}
		})
	}
	found.states = met.size
	for _, want := range s.wants {
		seen := false
		for i := uint32(0); i < met.size && !seen; i++ {
			seen = want.met(met.at(i))
		}
		if !seen {
			found.missed = append(found.missed, want.what)
		}
	}
	if found.violation == "" && !s.noProgress {
		if lost, any := s.stuck(met, from, to); any {
			found.violation = "a state from which no slot comes free any more"
			found.trace = s.replay(met, parents, lost, move{})
		}
	}
	t.Logf("%d states, %d steps, depth %d: %s", found.states, found.edges, found.depth, orNone(found.violation))
	return found
}

func orNone(violation string) string {
	if violation == "" {
		return "no violation"
	}
	return violation
}

// stuck looks backwards from the good states for one that reaches none of them
// without a fault.
func (s *scenario) stuck(met *set, from, to []uint32) (uint32, bool) {
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
		if s.good(met.at(i)) {
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

// replay tells the way to a state, and the step that followed. The states of the
// search have their writers in a fixed order, so they are walked through anew,
// with each writer keeping its name.
func (s *scenario) replay(met *set, parents []uint32, last uint32, then move) []string {
	var way []uint32
	for n := last; n != 0; n = parents[n] {
		way = append(way, n)
	}
	w := s.start()
	var trace []string
	take := func(want world) {
		taken := false
		s.moves(&w, func(m move) {
			if !taken && m.next.canonical() == want {
				taken = true
				trace = append(trace, m.what()+"\n      "+s.line(&m.next))
				w = m.next
			}
		})
	}
	for i := len(way) - 1; i >= 0; i-- {
		take(*met.at(way[i]))
	}
	if then.violation != "" {
		take(then.next.canonical())
	}
	return trace
}

func shown(trace []string) string { return "\n  - " + strings.Join(trace, "\n  - ") }
