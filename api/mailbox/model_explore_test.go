package mailbox

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// All that a model allocates is kept.
func init() { debug.SetGCPercent(400) }

// transition is one possible step of a model.
type transition[W comparable] struct {
	next W
	what string
	// violation of an invariant by this step; empty for none.
	violation string
}

// exploration is the result of exploring a model.
type exploration struct {
	violation string
	trace     []string
	states    int
}

// explore visits every reachable world, breadth first, and stops at the first
// violation, of a step or of check.
func explore[W comparable](t *testing.T, start W, steps func(W, func(transition[W])), check func(W) string) exploration {
	t.Helper()
	met := map[W]int32{start: 0}
	worlds := []W{start}
	parents := []int32{0}
	trace := func(to int32) (way []string) {
		for n := to; n != 0; n = parents[n] {
			steps(worlds[parents[n]], func(s transition[W]) {
				if s.next == worlds[n] && (len(way) == 0 || way[0] != s.what) {
					way = append([]string{s.what}, way...)
				}
			})
		}
		return way
	}
	for i := int32(0); int(i) < len(worlds); i++ {
		if says := check(worlds[i]); says != "" {
			return exploration{says, trace(i), len(worlds)}
		}
		var broken *transition[W]
		steps(worlds[i], func(s transition[W]) {
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
			return exploration{broken.violation, append(trace(i), broken.what), len(worlds)}
		}
	}
	return exploration{states: len(worlds)}
}

// requireHeld requires that no step and no check violated an invariant.
func (f exploration) requireHeld(t *testing.T) {
	t.Helper()
	require.Empty(t, f.violation, "%s", f)
	t.Logf("%d states", f.states)
}

func (f exploration) String() string { return f.violation + "\n  " + strings.Join(f.trace, "\n  ") }
