package mailbox

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// memberSteps are the possible steps of the member. Each gives its state a new number;
// a sequence is that number, or higher than the object's previous one.
func (m upModel) memberSteps(w upWorld, emit func(upWorld, string)) {
	now := w.currentReport()
	become := func(s reportSide, count func(*upWorld), what string) {
		next := w
		next.history[w.states] = s
		next.states++
		if count != nil {
			count(&next)
		}
		emit(next, what)
	}
	cluster := w.rebuilds
	written := func(o reportObject) reportObject {
		return reportObject{there: true, sequence: max(o.sequence, w.states) + 1, cluster: cluster, age: w.states, content: w.states}
	}
	for p := range m.pages {
		s := now
		s.pages[p] = written(now.pages[p])
		become(s, nil, "the agent writes a page")
		if now.pages[p].there {
			s.pages[p] = reportObject{}
			if now.lists&(1<<p) == 0 {
				become(s, nil, "the agent deletes a page")
			} else if w.edits < m.edits {
				become(s, func(next *upWorld) { next.edits++ }, "somebody deletes a page in the member")
			}
		}
	}
	if m.activity {
		s := now
		s.pages[activityPart] = written(now.pages[activityPart])
		become(s, nil, "the agent writes the activity")
		if now.pages[activityPart].there {
			s.pages[activityPart] = reportObject{}
			become(s, nil, "an agent of an older version deletes the activity")
		}
	}
	for lists := range uint8(1 << m.pages) {
		s := now
		right := true
		for p := range m.pages {
			page := now.pages[p]
			// A page that was unlisted is written again before it is listed again.
			rewritten := !now.root.there || now.lists&(1<<p) != 0 || page.age > now.root.age
			right = right && (lists&(1<<p) == 0 || page.there && rewritten)
		}
		if right {
			s.root, s.lists = written(now.root), lists
			become(s, nil, "the agent writes the root")
		}
	}
	if m.heartbeats && now.root.there {
		s := now
		s.root = written(now.root)
		s.root.content = now.root.content
		become(s, nil, "the agent writes a heartbeat")
	}
	if w.restores < m.restores {
		for n := range w.states - 1 {
			s := w.history[n]
			if s == now {
				continue
			}
			s.root.age = w.states
			for p := range s.pages {
				s.pages[p].age = w.states
			}
			become(s, func(next *upWorld) { next.restores++ }, "the member is restored")
		}
	}
	if w.rebuilds < m.rebuilds {
		become(reportSide{}, func(next *upWorld) { next.rebuilds++ }, "the member is rebuilt")
	}
}

func (m upModel) hubSteps(w upWorld, emit func(upWorld, string)) {
	set := func(change func(*upWorld), what string) {
		next := w
		change(&next)
		emit(next, what)
	}
	if w.known < w.rebuilds {
		set(func(next *upWorld) { next.known++ }, "somebody accepts the cluster")
	}
	if m.restores > 0 && !w.backup && w.hub.root.there {
		set(func(next *upWorld) { next.saved, next.backup = next.hub, true }, "the hub is backed up")
	}
	if w.backup && w.restores < m.restores && w.hub != w.saved {
		set(func(next *upWorld) {
			next.hub = next.saved
			next.restores++
			next.touchRoot()
			for p := range uint8(len(next.hub.pages)) {
				next.touchPage(p)
			}
		}, "the hub is restored")
	}
	if w.edits == m.edits {
		return
	}
	if w.hub.root.there {
		root := func(o func(reportObject) reportObject, what string) {
			set(func(next *upWorld) { next.hub.root = o(next.hub.root); next.edits++; next.touchRoot() }, what)
		}
		root(func(o reportObject) reportObject { o.edited = true; return o }, "somebody edits the hub's root")
		root(func(o reportObject) reportObject { o.edited = true; o.sequence = 99; return o }, "somebody raises the hub's root")
		root(func(reportObject) reportObject { return reportObject{} }, "somebody deletes the hub's root")
	}
	for p := range uint8(len(w.hub.pages)) {
		if !w.hub.pages[p].there {
			continue
		}
		page := func(o func(reportObject) reportObject, what string) {
			set(func(next *upWorld) { next.hub.pages[p] = o(next.hub.pages[p]); next.edits++; next.touchPage(p) }, what)
		}
		page(func(o reportObject) reportObject { o.edited = true; return o }, "somebody edits a page on the hub")
		page(func(o reportObject) reportObject { o.edited = true; o.sequence = 99; return o }, "somebody raises a page on the hub")
		page(func(reportObject) reportObject { return reportObject{} }, "somebody deletes a page on the hub")
	}
}

// checkConvergence returns what is wrong after changes stop and one relay runs; empty
// if nothing is.
func (m upModel) checkConvergence(w upWorld) string {
	w.relays = [2]upRelay{}
	source := w.currentReport()
	if !source.root.there {
		return ""
	}
	var before reportSide
	for range 3 {
		before = w.hub
		w.relays[0] = upRelay{pc: upList, known: w.known, source: source}
		for w.relays[0].pc != upIdle {
			m.relaySteps(w, 0, func(s transition[upWorld]) { w = s.next })
		}
	}
	result := w.relays[0].result
	switch {
	case before != w.hub:
		return "a relay alone never stops writing"
	case source.root.cluster != w.known:
		return messageUnless(result == otherCluster, "another cluster's report is not reported")
	case w.hub.root.sequence > source.root.sequence:
		return messageUnless(result == copyIsNewer, "an older report is not reported")
	case w.hub.root != source.root || w.hub.lists != source.lists:
		return "the hub's root stays different from the member's"
	}
	for p := range m.pages {
		page, copied := source.pages[p], w.hub.pages[p]
		listed := source.lists&(1<<p) != 0
		switch {
		case listed && page.there && page.cluster == source.root.cluster && page != copied && !m.isRefused(p):
			return "a page on the hub stays different from the member's"
		case !listed && copied.there:
			return "a page stays on the hub that no root lists"
		}
	}
	want := source.pages[activityPart]
	if !want.there || want.cluster != source.root.cluster {
		want = reportObject{}
	}
	return messageUnless(w.hub.pages[activityPart] == want, "the hub's activity stays different from the member's")
}

func (m upModel) exploreAll(t *testing.T) exploration {
	t.Helper()
	return explore(t, upWorld{states: 1}, m.steps, m.checkConvergence)
}

func TestSyncUpUnderAnyInterleaving(t *testing.T) {
	for name, m := range map[string]upModel{
		"changes":   {relays: 2, pages: 1, states: 5},
		"two pages": {relays: 1, pages: 2, states: 5},
		"restores":  {relays: 2, pages: 1, states: 4, restores: 1},
		"edits":     {relays: 2, pages: 1, states: 4, edits: 1},
		"rebuild":   {relays: 2, pages: 1, states: 4, rebuilds: 1},
		"all":       {relays: 1, pages: 1, states: 5, restores: 1, edits: 1, rebuilds: 1},

		"caches":           {relays: 2, pages: 1, states: 4, caches: true},
		"caches, restores": {relays: 1, pages: 1, states: 4, restores: 1, caches: true},
		"caches, edits":    {relays: 1, pages: 1, states: 4, edits: 1, caches: true},
		"caches, activity": {relays: 1, activity: true, states: 4, restores: 1, caches: true},

		"heartbeats":           {relays: 2, states: 4, caches: true, heartbeats: true},
		"heartbeats, page":     {relays: 1, pages: 1, states: 5, caches: true, heartbeats: true},
		"heartbeats, restores": {relays: 1, pages: 1, states: 4, restores: 1, caches: true, heartbeats: true},
		"heartbeats, edits":    {relays: 1, pages: 1, states: 4, edits: 1, caches: true, heartbeats: true},
		"heartbeats, rebuild":  {relays: 1, pages: 1, states: 4, rebuilds: 1, caches: true, heartbeats: true},

		"refusals":         {relays: 2, pages: 1, states: 4, refuses: true},
		"refusals of two":  {relays: 1, pages: 2, states: 4, refuses: true},
		"refusals, caches": {relays: 1, pages: 2, states: 4, caches: true, heartbeats: true, refuses: true},
		"refusals, all":    {relays: 1, pages: 1, states: 4, restores: 1, edits: 1, rebuilds: 1, refuses: true},

		"whole":            {relays: 2, pages: 1, states: 4, whole: true},
		"whole, two pages": {relays: 1, pages: 2, states: 5, whole: true},
		"whole, restores":  {relays: 2, pages: 1, states: 3, restores: 1, whole: true},
		"whole, edits":     {relays: 2, pages: 1, states: 3, edits: 1, whole: true},
		"whole, rebuild":   {relays: 2, pages: 1, states: 4, rebuilds: 1, whole: true},
		"whole, all":       {relays: 1, pages: 1, states: 4, restores: 1, edits: 1, rebuilds: 1, whole: true},
		"whole, activity":  {relays: 2, activity: true, states: 4, whole: true},
		"whole, refusals":  {relays: 1, pages: 2, states: 4, refuses: true, whole: true},

		"activity":          {relays: 2, activity: true, states: 5},
		"activity, edits":   {relays: 2, activity: true, states: 4, edits: 1},
		"activity, rebuild": {relays: 2, activity: true, states: 4, rebuilds: 1},
		"activity, all":     {relays: 1, activity: true, states: 4, restores: 1, edits: 1, rebuilds: 1},
	} {
		t.Run(name, func(t *testing.T) {
			m.exploreAll(t).requireHeld(t)
		})
	}
}

func TestSyncUpModelFindsPlantedBugs(t *testing.T) {
	for name, c := range map[string]struct {
		upModel
		want string
	}{
		"no guard":                  {upModel{bugs: noGuard}, "an older root replaced a newer one"},
		"sequences not compared":    {upModel{bugs: noCompare}, "an older root replaced a newer one"},
		"the cache is enough":       {upModel{bugs: neverRereads, restores: 1}, "an older page replaced a newer one"},
		"identity not compared":     {upModel{bugs: noIdentity, rebuilds: 1}, "another cluster's report is not reported"},
		"root before its pages":     {upModel{bugs: rootBeforePages}, "a root was copied before its page"},
		"deletes before the root":   {upModel{bugs: deletesBeforeRoot}, "a page was deleted that the hub's root lists"},
		"deletes without rereading": {upModel{bugs: deletesWithoutReread}, "a page was deleted that the member's root lists"},
		"pages by sequence alone":   {upModel{bugs: pageBySequence, restores: 1}, "a page on the hub stays different from the member's"},
		"stops at a refused page":   {upModel{bugs: stopsAtRefusal, refuses: true}, "the hub's root stays different from the member's"},
		"edits stay":                {upModel{bugs: neverRewrites, edits: 1}, "the hub's root stays different from the member's"},
		"copies of a former sync":   {upModel{bugs: keepsWhole, whole: true, restores: 1}, "a copy was confirmed that is older than its source"},
		"no guard, read at once":    {upModel{bugs: noGuard, whole: true}, "an older root replaced a newer one"},
	} {
		t.Run(name, func(t *testing.T) {
			m := c.upModel
			m.relays, m.pages, m.states = 2, 1, 5
			assert.Equal(t, c.want, m.exploreAll(t).violation)
		})
	}
	for name, c := range map[string]struct {
		upModel
		want string
	}{
		"no guard":                  {upModel{relays: 2, bugs: noGuard}, "an older root replaced a newer one"},
		"deletes by its cache":      {upModel{relays: 1, restores: 1, bugs: deletesByCache}, "a page was deleted that the hub's root lists"},
		"a cache confirms":          {upModel{relays: 1, restores: 1, bugs: confirmsFromCache}, "a copy was confirmed that is older than its source"},
		"deletes without rereading": {upModel{relays: 2, bugs: deletesWithoutReread}, "a page was deleted that the member's root lists"},
		"beats by sequence alone":   {upModel{relays: 1, heartbeats: true, bugs: beatsBySequence}, "a heartbeat says of a copy what the member does not"},
		"beats for any copy":        {upModel{relays: 2, heartbeats: true, bugs: beatsForAnyCopy}, "a heartbeat says of a copy what the member does not"},
	} {
		t.Run("caches: "+name, func(t *testing.T) {
			m := c.upModel
			m.caches, m.pages, m.states = true, 1, 4
			assert.Equal(t, c.want, m.exploreAll(t).violation)
		})
	}
	for name, c := range map[string]struct {
		upModel
		want string
	}{
		"by sequence alone":         {upModel{bugs: pageBySequence, restores: 1}, "the hub's activity stays different from the member's"},
		"deletes without rereading": {upModel{bugs: deletesWithoutReread}, "an activity was deleted that the member has"},
	} {
		t.Run("activity: "+name, func(t *testing.T) {
			m := c.upModel
			m.relays, m.activity, m.states = 2, true, 5
			assert.Equal(t, c.want, m.exploreAll(t).violation)
		})
	}
}
