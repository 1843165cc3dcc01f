package mailbox

import (
	"cmp"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"
)

// plantedBug is a bug that the model can have, to prove that it would be found.
type plantedBug uint16

const (
	noGuard plantedBug = 1 << iota
	noCompare
	neverRereads
	noIdentity
	rootBeforePages
	deletesBeforeRoot
	deletesWithoutReread
	pageBySequence
	neverRewrites
	foreignIsAhead
	confirmsFromCache
	deletesByCache
	keepsWhole
	beatsBySequence
	beatsForAnyCopy
	stopsAtRefusal
)

func (b plantedBug) has(one plantedBug) bool { return b&one != 0 }

const maxStates = 5

// modelPlan is a plan in the model. version is epoch × 16 + sequence. age is the number
// of the hub state in which the plan became wanted: after a restore, the restored plan
// is younger than what it replaces.
type modelPlan struct {
	there, edited         bool
	version, cluster, age uint8
}

type downRelay struct {
	pc     uint8
	source modelPlan
	target modelPlan
	live   bool
	// fresh: the target was not written since it was read.
	fresh  bool
	action syncAction
}

const (
	downIdle uint8 = iota
	downRead
	downReread
	downAsked
	downWrite
)

type downWorld struct {
	history [maxStates]modelPlan
	states  uint8
	// cluster that the member currently is.
	cluster uint8
	target  modelPlan
	saved   modelPlan
	isSaved bool
	relays  [2]downRelay
	// Steps taken so far, of kinds that are limited.
	restores, edits, rebuilds uint8
}

func (w *downWorld) currentPlan() modelPlan { return w.history[w.states-1] }

func (w *downWorld) markStale() {
	for i := range w.relays {
		w.relays[i].fresh = false
	}
}

type downModel struct {
	bugs                              plantedBug
	restores, edits, rebuilds, relays uint8
	// foreign: the model starts with a copy for another cluster, with a higher version.
	foreign bool
}

func clusterUID(cluster uint8) types.UID { return types.UID([]string{"x", "y", "z"}[cluster]) }

func (m downModel) decideCopy(w *downWorld, r *downRelay) {
	l := comparison{
		exists: r.target.there, sourceLive: r.live,
		order:        cmp.Compare(r.source.version, r.target.version),
		otherCluster: r.source.cluster != r.target.cluster,
	}
	l.equal = r.source.version == r.target.version && !l.otherCluster && !r.target.edited && r.source.age == r.target.age
	if m.bugs.has(noCompare) && !l.equal {
		l.order = 1
	}
	l.sourceLive = l.sourceLive || m.bugs.has(neverRereads)
	reported := clusterUID(w.cluster)
	if m.bugs.has(noIdentity) {
		reported = ""
	}
	r.action = decideDown(l, reported, clusterUID(r.source.cluster))
	if m.bugs.has(neverRewrites) && l.exists && l.order == 0 {
		r.action = keepCopy
	}
	if m.bugs.has(foreignIsAhead) && r.action == overwriteCopy && l.exists && l.otherCluster && l.order < 0 {
		r.action = copyIsNewer
	}
	r.pc = map[syncAction]uint8{rereadSource: downReread, overwriteCopy: downWrite}[r.action]
}

func (m downModel) steps(w downWorld, do func(transition[downWorld])) {
	for i := range m.relays {
		m.relaySteps(w, i, do)
	}
	emit := func(next downWorld, what string) { do(transition[downWorld]{next: next, what: what}) }
	m.hubSteps(w, emit)
	m.memberSteps(w, emit)
}

func (m downModel) relaySteps(w downWorld, i uint8, do func(transition[downWorld])) {
	who := string(rune('A' + i))
	next := w
	r := &next.relays[i]
	switch r.pc {
	case downIdle:
		for n := range w.states {
			next := w
			if next.history[n].there {
				next.relays[i] = downRelay{pc: downRead, source: next.history[n]}
				do(transition[downWorld]{next: next, what: who + " reads a plan from its cache"})
			}
		}
		return
	case downRead:
		r.target, r.fresh = w.target, true
		m.decideCopy(&w, r)
		do(transition[downWorld]{next: next, what: who + " reads the copy"})
	case downReread:
		if !m.bugs.has(neverRereads) {
			r.source = w.currentPlan()
		}
		r.live = true
		if r.source.there {
			m.decideCopy(&w, r)
		} else {
			r.pc = downIdle
		}
		do(transition[downWorld]{next: next, what: who + " reads the hub live"})
	case downWrite:
		says := m.writeCopy(&next, r)
		*r = downRelay{action: r.action}
		do(transition[downWorld]{next: next, what: who + " writes the copy", violation: says})
	}
	if r.pc == downIdle {
		*r = downRelay{action: r.action}
	}
}

func (m downModel) writeCopy(w *downWorld, r *downRelay) (violation string) {
	if !r.fresh && !m.bugs.has(noGuard) {
		return ""
	}
	old := w.target
	w.target = r.source
	w.markStale()
	switch {
	case !old.there || old.edited:
	case r.source.cluster != old.cluster:
		return messageUnless(r.source.age >= old.age, "a plan for the previous cluster replaced the plan for the current one")
	case r.source.version < old.version:
		return "an older plan replaced a newer one"
	case r.source.version == old.version && r.source.age < old.age:
		return "of two plans of one version, the older one replaced the newer"
	}
	return ""
}

func (m downModel) hubSteps(w downWorld, emit func(downWorld, string)) {
	if w.states == maxStates {
		return
	}
	become := func(p modelPlan, what string) {
		next := w
		p.age = w.states
		next.history[w.states] = p
		next.states++
		emit(next, what)
	}
	p := w.currentPlan()
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
	if w.currentPlan().there {
		become(modelPlan{version: w.currentPlan().version, cluster: w.currentPlan().cluster}, "somebody deletes the plan on the hub")
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

func (m downModel) memberSteps(w downWorld, emit func(downWorld, string)) {
	if !w.isSaved && m.restores > 0 {
		next := w
		next.saved, next.isSaved = w.target, true
		emit(next, "the member is backed up")
	}
	set := func(p modelPlan, count func(*downWorld), what string) {
		next := w
		next.target = p
		next.markStale()
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
		set(modelPlan{}, edited, "somebody deletes the copy")
	}
	if w.rebuilds < m.rebuilds {
		rebuilt := func(next *downWorld) { next.rebuilds++; next.cluster = 1 }
		set(modelPlan{}, rebuilt, "the member is rebuilt")
		if w.target.there {
			set(w.target, rebuilt, "the member is rebuilt, and its objects are restored")
		}
	}
}

// checkConvergence returns what is wrong after changes stop and one relay runs; empty
// if nothing is.
func (m downModel) checkConvergence(w downWorld) string {
	w.relays = [2]downRelay{}
	writes := 0
	for range 3 {
		writes = 0
		if !w.currentPlan().there {
			return ""
		}
		w.relays[0] = downRelay{pc: downRead, source: w.currentPlan()}
		for w.relays[0].pc != downIdle {
			if w.relays[0].pc == downWrite {
				writes++
			}
			m.relaySteps(w, 0, func(s transition[downWorld]) { w = s.next })
		}
	}
	source, target := w.currentPlan(), w.target
	switch {
	case writes != 0:
		return "a relay alone never stops writing"
	case source.cluster != w.cluster:
		return messageUnless(w.relays[0].action == otherCluster, "a plan for another cluster is not reported")
	case target.version > source.version && target.cluster == source.cluster:
		return messageUnless(w.relays[0].action == copyIsNewer, "a newer plan in the member is not reported")
	}
	return messageUnless(source == target, "the member's copy stays different from the hub's")
}

func messageUnless(right bool, otherwise string) string {
	if right {
		return ""
	}
	return otherwise
}

func (m downModel) exploreAll(t *testing.T) exploration {
	t.Helper()
	start := downWorld{states: 1}
	start.history[0] = modelPlan{there: true, version: 1}
	if m.foreign {
		start.target = modelPlan{there: true, version: 18, cluster: 2}
	}
	return explore(t, start, m.steps, m.checkConvergence)
}

func TestSyncDownUnderAnyInterleaving(t *testing.T) {
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
			m.exploreAll(t).requireHeld(t)
		})
	}
}

func TestSyncDownModelFindsPlantedBugs(t *testing.T) {
	for name, c := range map[string]struct {
		downModel
		want string
	}{
		"no guard":              {downModel{relays: 2, bugs: noGuard}, "an older plan replaced a newer one"},
		"versions not compared": {downModel{relays: 2, bugs: noCompare}, "an older plan replaced a newer one"},
		"the cache is enough":   {downModel{relays: 2, restores: 1, bugs: neverRereads}, "of two plans of one version, the older one replaced the newer"},
		"identity not compared": {downModel{relays: 1, rebuilds: 1, bugs: noIdentity}, "a plan for another cluster is not reported"},
		"foreign is ahead":      {downModel{relays: 1, foreign: true, bugs: foreignIsAhead}, "the member's copy stays different from the hub's"},
		"edits stay":            {downModel{relays: 1, edits: 1, bugs: neverRewrites}, "the member's copy stays different from the hub's"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, c.want, c.exploreAll(t).violation)
		})
	}
}
