package relay

import (
	"cmp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

// Bugs that are planted into the model, to see that it finds them.
type bug uint16

const (
	noGuard bug = 1 << iota
	noCompare
	neverAsks
	noIdentity
	rootBeforePages
	sweepsBeforeRoot
	sweepsUnasked
	pageBySequence
	neverRewrites
	foreignIsAhead
)

func (b bug) has(one bug) bool { return b&one != 0 }

const mostStates = 5

// plan as the model knows it; version is epoch × 16 + sequence. age is the number
// of the hub's state in which it came to be what the hub wants: after a restore,
// what is restored is younger than what it replaces.
type plan struct {
	there, edited         bool
	version, cluster, age uint8
}

type downRelay struct {
	pc     uint8
	source plan
	target plan
	live   bool
	// fresh: the target was not written since it was read.
	fresh   bool
	verdict verdict
}

const (
	downIdle uint8 = iota
	downRead
	downAsk
	downAsked
	downPut
)

type downWorld struct {
	history [mostStates]plan
	states  uint8
	// cluster that the member is.
	cluster uint8
	target  plan
	saved   plan
	isSaved bool
	relays  [2]downRelay
	// What happened so far, of what happens so often only.
	restores, edits, rebuilds uint8
}

func (w *downWorld) now() plan { return w.history[w.states-1] }

func (w *downWorld) touch() {
	for i := range w.relays {
		w.relays[i].fresh = false
	}
}

type downModel struct {
	bugs                              bug
	restores, edits, rebuilds, relays uint8
	// foreign: it begins with a copy for another cluster, of a higher version.
	foreign bool
}

func uid(cluster uint8) types.UID { return types.UID([]string{"x", "y", "z"}[cluster]) }

func (m downModel) decide(w *downWorld, r *downRelay) {
	l := look{
		found: r.target.there, live: r.live,
		order:   cmp.Compare(r.source.version, r.target.version),
		foreign: r.source.cluster != r.target.cluster,
	}
	l.same = r.source.version == r.target.version && !l.foreign && !r.target.edited && r.source.age == r.target.age
	if m.bugs.has(noCompare) && !l.same {
		l.order = 1
	}
	l.live = l.live || m.bugs.has(neverAsks)
	reported := uid(w.cluster)
	if m.bugs.has(noIdentity) {
		reported = ""
	}
	r.verdict = decideDown(l, reported, uid(r.source.cluster))
	if m.bugs.has(neverRewrites) && l.found && l.order == 0 {
		r.verdict = leave
	}
	if m.bugs.has(foreignIsAhead) && r.verdict == write && l.found && l.foreign && l.order < 0 {
		r.verdict = ahead
	}
	r.pc = map[verdict]uint8{ask: downAsk, write: downPut}[r.verdict]
}

func (m downModel) steps(w downWorld, do func(step[downWorld])) {
	for i := range m.relays {
		m.relay(w, i, do)
	}
	emit := func(next downWorld, what string) { do(step[downWorld]{next: next, what: what}) }
	m.hub(w, emit)
	m.member(w, emit)
}

func (m downModel) relay(w downWorld, i uint8, do func(step[downWorld])) {
	who := string(rune('A' + i))
	next := w
	r := &next.relays[i]
	switch r.pc {
	case downIdle:
		for n := range w.states {
			next := w
			if next.history[n].there {
				next.relays[i] = downRelay{pc: downRead, source: next.history[n]}
				do(step[downWorld]{next: next, what: who + " reads a plan from its cache"})
			}
		}
		return
	case downRead:
		r.target, r.fresh = w.target, true
		m.decide(&w, r)
		do(step[downWorld]{next: next, what: who + " reads the copy"})
	case downAsk:
		if !m.bugs.has(neverAsks) {
			r.source = w.now()
		}
		r.live = true
		if r.source.there {
			m.decide(&w, r)
		} else {
			r.pc = downIdle
		}
		do(step[downWorld]{next: next, what: who + " asks the hub"})
	case downPut:
		says := m.put(&next, r)
		*r = downRelay{verdict: r.verdict}
		do(step[downWorld]{next: next, what: who + " writes the copy", violation: says})
	}
	if r.pc == downIdle {
		*r = downRelay{verdict: r.verdict}
	}
}

func (m downModel) put(w *downWorld, r *downRelay) (violation string) {
	if !r.fresh && !m.bugs.has(noGuard) {
		return ""
	}
	old := w.target
	w.target = r.source
	w.touch()
	switch {
	case !old.there || old.edited:
	case r.source.cluster != old.cluster:
		return is(r.source.age >= old.age, "a plan for the cluster of before replaced that for the one of now")
	case r.source.version < old.version:
		return "an older plan replaced a newer one"
	case r.source.version == old.version && r.source.age < old.age:
		return "of two plans of one version, the older one replaced the newer"
	}
	return ""
}

func (m downModel) hub(w downWorld, emit func(downWorld, string)) {
	if w.states == mostStates {
		return
	}
	become := func(p plan, what string) {
		next := w
		p.age = w.states
		next.history[w.states] = p
		next.states++
		emit(next, what)
	}
	p := w.now()
	p.there = true
	switch {
	case w.target.there && w.target.cluster == w.cluster && w.target.version > p.version:
		p.version = (w.target.version/16 + 1) * 16
		p.cluster = w.cluster
		become(p, "the planner begins an epoch above the member's")
	default:
		p.version++
		become(p, "the planner changes the plan")
		if p.cluster != w.cluster {
			p.cluster = w.cluster
			become(p, "the planner plans for the accepted cluster")
		}
	}
	if w.now().there {
		become(plan{version: w.now().version, cluster: w.now().cluster}, "somebody deletes the plan on the hub")
	}
	if w.restores < m.restores {
		for n := range w.states - 1 {
			next := w
			next.restores++
			p := w.history[n]
			p.age = w.states
			next.history[w.states] = p
			next.states++
			emit(next, "the hub is restored")
		}
	}
}

func (m downModel) member(w downWorld, emit func(downWorld, string)) {
	if !w.isSaved && m.restores > 0 {
		next := w
		next.saved, next.isSaved = w.target, true
		emit(next, "the member is backed up")
	}
	set := func(p plan, count func(*downWorld), what string) {
		next := w
		next.target = p
		next.touch()
		count(&next)
		emit(next, what)
	}
	if w.isSaved && w.restores < m.restores {
		set(w.saved, func(next *downWorld) { next.restores++ }, "the member is restored")
	}
	if w.edits < m.edits && w.target.there {
		edited := func(next *downWorld) { next.edits++ }
		p := w.target
		p.edited = true
		set(p, edited, "somebody edits the copy")
		p.version += 16
		set(p, edited, "somebody raises the copy's version")
		set(plan{}, edited, "somebody deletes the copy")
	}
	if w.rebuilds < m.rebuilds {
		rebuilt := func(next *downWorld) { next.rebuilds++; next.cluster = 1 }
		set(plan{}, rebuilt, "the member is rebuilt")
		if w.target.there {
			set(w.target, rebuilt, "the member is rebuilt, and its objects are restored")
		}
	}
}

// settles tells what is wrong once changes have stopped and one relay runs.
func (m downModel) settles(w downWorld) string {
	w.relays = [2]downRelay{}
	writes := 0
	for range 3 {
		writes = 0
		if !w.now().there {
			return ""
		}
		w.relays[0] = downRelay{pc: downRead, source: w.now()}
		for w.relays[0].pc != downIdle {
			if w.relays[0].pc == downPut {
				writes++
			}
			m.relay(w, 0, func(s step[downWorld]) { w = s.next })
		}
	}
	source, target := w.now(), w.target
	switch {
	case writes != 0:
		return "a relay alone never stops writing"
	case source.cluster != w.cluster:
		return is(w.relays[0].verdict == another, "a plan for another cluster is not told")
	case target.version > source.version && target.cluster == source.cluster:
		return is(w.relays[0].verdict == ahead, "a member that is ahead is not told")
	}
	return is(source == target, "the member's copy stays another than the hub's")
}

func is(right bool, otherwise string) string {
	if right {
		return ""
	}
	return otherwise
}

func (m downModel) explore(t *testing.T) found {
	t.Helper()
	start := downWorld{states: 1}
	start.history[0] = plan{there: true, version: 1}
	if m.foreign {
		start.target = plan{there: true, version: 18, cluster: 2}
	}
	return explore(t, start, m.steps, m.settles)
}

func TestDownUnderAnyInterleaving(t *testing.T) {
	for name, m := range map[string]downModel{
		"changes":  {relays: 2},
		"restores": {relays: 2, restores: 1},
		"edits":    {relays: 2, edits: 1},
		"rebuild":  {relays: 2, rebuilds: 1},
		"foreign":  {relays: 2, foreign: true},
		"all":      {relays: 1, restores: 1, edits: 1, rebuilds: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := m.explore(t)
			require.Empty(t, f.violation, "%s", f)
			t.Logf("%d states", f.states)
		})
	}
}

func TestDownModelFindsBugs(t *testing.T) {
	for name, c := range map[string]struct {
		downModel
		want string
	}{
		"no guard":            {downModel{relays: 2, bugs: noGuard}, "an older plan replaced a newer one"},
		"versions not looked": {downModel{relays: 2, bugs: noCompare}, "an older plan replaced a newer one"},
		"the cache is enough": {downModel{relays: 2, restores: 1, bugs: neverAsks}, "of two plans of one version, the older one replaced the newer"},
		"identity not looked": {downModel{relays: 1, rebuilds: 1, bugs: noIdentity}, "a plan for another cluster is not told"},
		"foreign is ahead":    {downModel{relays: 1, foreign: true, bugs: foreignIsAhead}, "the member's copy stays another than the hub's"},
		"edits stay":          {downModel{relays: 1, edits: 1, bugs: neverRewrites}, "the member's copy stays another than the hub's"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, c.want, c.explore(t).violation)
		})
	}
}
