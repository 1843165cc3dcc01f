package relay

import (
	"strings"
	"testing"
)

// step is something that can happen in a world of a model.
type step[W comparable] struct {
	next W
	what string
	// violation of an invariant by this step; empty for none.
	violation string
}

// found is what came of exploring a model.
type found struct {
	violation string
	trace     []string
	states    int
}

// explore visits every world that can be reached, breadth first, and stops at
// the first violation: of a step, or what check says of a world.
func explore[W comparable](t *testing.T, start W, steps func(W, func(step[W])), check func(W) string) found {
	t.Helper()
	met := map[W]int32{start: 0}
	worlds := []W{start}
	parents := []int32{0}
	trace := func(to int32) (way []string) {
		for n := to; n != 0; n = parents[n] {
			steps(worlds[parents[n]], func(s step[W]) {
				if s.next == worlds[n] && (len(way) == 0 || way[0] != s.what) {
					way = append([]string{s.what}, way...)
				}
			})
		}
		return way
	}
	for i := int32(0); int(i) < len(worlds); i++ {
		if says := check(worlds[i]); says != "" {
			return found{says, trace(i), len(worlds)}
		}
		var broken *step[W]
		steps(worlds[i], func(s step[W]) {
			if s.violation != "" && broken == nil {
				broken = &s
			}
			if _, known := met[s.next]; !known {
				met[s.next] = int32(len(worlds))
				worlds = append(worlds, s.next)
				parents = append(parents, i)
			}
		})
		if broken != nil {
			return found{broken.violation, append(trace(i), broken.what), len(worlds)}
		}
	}
	return found{states: len(worlds)}
}

func (f found) String() string { return f.violation + "\n  " + strings.Join(f.trace, "\n  ") }
