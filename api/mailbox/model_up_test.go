package mailbox

import "cmp"

const (
	maxPages = 2
	// activityPart stands for the activity where others are the number of a page.
	activityPart = maxPages
)

// reportObject is a root or a page. age is the number of the member state in which the
// member first had it: after a restore, the restored object is younger than what it
// replaces. content is the number of the state since which it says the same but for its time.
type reportObject struct {
	there, edited                   bool
	sequence, cluster, age, content uint8
}

// reportSide is the state of one side. lists has a bit for each page that the root
// lists.
type reportSide struct {
	root  reportObject
	lists uint8
	// pages, and the activity behind them, which no root lists.
	pages [maxPages + 1]reportObject
}

type upRelay struct {
	pc, page uint8
	known    uint8
	// source is the report as it was read at one time.
	source reportSide
	// listed are the pages that were on the hub at the start; unwritten are those that were not
	// written, created or deleted since.
	listed, unwritten uint8
	// whole are the copies as they were at the start, if all were read at once.
	whole      reportSide
	readsWhole bool
	// target is the copy that was read last; fresh: it was not written since.
	target          reportObject
	fresh           bool
	root            syncAction
	rootFresh, live bool
	// toDelete are the pages to delete.
	toDelete uint8
	// result is what the relay reports at the end.
	result syncAction
	// cached: this run does not recheck; a cache, which may be stale, says which copies have
	// changed since the relay found them equal. touched: the hub's root was written during
	// this run.
	cached, touched bool
	// beats: the hub's root is left as it is, and a heartbeat is published after the pages;
	// published: that was now.
	beats, published bool
	// equal are the objects that the relay found or made equal. They outlast a run.
	equal reportSide
}

const (
	upIdle uint8 = iota
	upList
	upRoot
	upRereadRoot
	upPage
	upRereadPage
	upWritePage
	upWriteRoot
	upRelist
	upRereadLists
	upDeletePages
	upActivity
	upRereadActivity
	upWriteActivity
	upRecheckActivity
	upDeleteActivity
)

type upWorld struct {
	history [maxStates]reportSide
	states  uint8
	// known is the cluster that the hub knows.
	known  uint8
	hub    reportSide
	saved  reportSide
	backup bool
	relays [2]upRelay
	// Steps taken so far, of kinds that are limited.
	restores, edits, rebuilds uint8
}

func (w *upWorld) currentReport() reportSide { return w.history[w.states-1] }

func (w *upWorld) touchRoot() {
	for i := range w.relays {
		w.relays[i].rootFresh, w.relays[i].touched = false, w.relays[i].pc != upIdle
	}
}

func (w *upWorld) touchPage(p uint8) {
	for i := range w.relays {
		r := &w.relays[i]
		r.unwritten &^= 1 << p
		if r.page == p {
			r.fresh = false
		}
	}
}

type upModel struct {
	bugs                                     plantedBug
	pages, relays, restores, edits, rebuilds uint8
	// states is how many member states the model covers.
	states uint8
	// activity: the member may have one. caches: relays may trust their caches.
	activity, caches bool
	// heartbeats: the agent writes them, and relays that trust their caches spare them.
	heartbeats bool
	// refuses: the hub takes no write of the first page, ever.
	refuses bool
	// whole: relays read all copies at once, unless they trust their caches.
	whole bool
}

func (m upModel) compare(source, target reportObject, live bool) comparison {
	l := comparison{
		exists: target.there, sourceLive: live || m.bugs.has(neverRereads),
		order:        cmp.Compare(source.sequence, target.sequence),
		otherCluster: source.cluster != target.cluster,
	}
	l.equal = l.order == 0 && !l.otherCluster && source.edited == target.edited && source.age == target.age
	if m.bugs.has(noCompare) && !l.equal {
		l.order = 1
	}
	return l
}

func (m upModel) steps(w upWorld, do func(transition[upWorld])) {
	for i := range m.relays {
		m.relaySteps(w, i, do)
	}
	emit := func(next upWorld, what string) { do(transition[upWorld]{next: next, what: what}) }
	if w.states < m.states {
		m.memberSteps(w, emit)
	}
	m.hubSteps(w, emit)
}

// relaySteps performs the next request of one relay.
func (m upModel) relaySteps(w upWorld, i uint8, do func(transition[upWorld])) {
	who := string(rune('A' + i))
	if w.relays[i].pc == upIdle {
		for n := range w.states {
			// A relay may not know yet which cluster the hub has accepted.
			for known := range w.known + 1 {
				next := w
				before := w.relays[i]
				next.relays[i] = upRelay{pc: upList, known: known, source: w.history[n], equal: before.equal, whole: before.whole, readsWhole: before.readsWhole}
				if !m.caches {
					next.relays[i].equal = reportSide{}
				}
				do(transition[upWorld]{next: next, what: who + " reads a report from its cache"})
				if m.caches && w.history[n].root.there {
					m.cachedRuns(next, i, do)
				}
			}
		}
		return
	}
	next := w
	r := &next.relays[i]
	what, violation := m.relayRequest(&next, r)
	if violation == "" && r.published {
		violation = m.checkHeartbeat(&next, r)
	}
	r.published = false
	if r.pc == upIdle {
		if violation == "" {
			violation = m.checkConfirmation(&next, r)
		}
		kept := upRelay{result: r.result, equal: r.equal}
		if m.bugs.has(keepsWhole) {
			kept.whole, kept.readsWhole = r.whole, r.readsWhole
		}
		*r = kept
	}
	do(transition[upWorld]{next: next, what: who + what, violation: violation})
}

func (m upModel) relayRequest(w *upWorld, r *upRelay) (what, violation string) {
	switch r.pc {
	case upList:
		if !r.source.root.there {
			r.pc = upIdle
			return " finds no report", ""
		}
		m.listCopies(w, r)
		if m.whole && (!r.readsWhole || !m.bugs.has(keepsWhole)) {
			r.whole, r.readsWhole, r.rootFresh = w.hub, true, true
		}
		r.pc = upRoot
		return " lists the pages on the hub", ""
	case upRoot:
		if m.isHeartbeat(r) {
			r.root, r.result, r.beats, r.page, r.pc = keepCopy, keepCopy, true, 0, upPage
			return " finds that only the time is later", ""
		}
		switch {
		case r.readsWhole:
			r.target = r.whole.root
		case r.isKnown(r.equal.root, r.source.root):
			r.target, r.rootFresh = r.equal.root, w.hub.root == r.equal.root
		default:
			r.target, r.rootFresh = w.hub.root, true
		}
		m.decideRoot(w, r)
		return " reads the hub's root", ""
	case upRereadRoot:
		if !m.bugs.has(neverRereads) && w.currentReport().root != r.source.root {
			r.source = w.currentReport()
		}
		if !r.source.root.there {
			r.pc = upIdle
			return " finds that the report is gone", ""
		}
		r.live = true
		m.decideRoot(w, r)
		return " reads the root live", ""
	case upPage:
		return m.readPage(w, r), ""
	case upRereadPage:
		page := w.currentReport().pages[r.page]
		if m.bugs.has(neverRereads) {
			page = r.source.pages[r.page]
		}
		if !page.there || page.cluster != r.source.root.cluster {
			r.source.pages[r.page] = reportObject{}
			m.nextPage(r)
			return " finds that the page is gone", ""
		}
		r.source.pages[r.page] = page
		m.decidePage(r, true)
		return " reads a page live", ""
	case upWritePage:
		return m.writePage(w, r)
	case upWriteRoot:
		return m.writeRoot(w, r)
	case upRelist:
		m.relistCopies(w, r)
		return " lists the pages on the hub live", ""
	case upRereadLists:
		m.rereadLists(w, r)
		return " rereads the root live", ""
	case upDeletePages:
		return m.deletePages(w, r)
	default:
		return m.activityRequest(w, r)
	}
}

// listCopies adds the copies on the hub to those that are listed.
func (m upModel) listCopies(w *upWorld, r *upRelay) {
	for p := range m.pages {
		if w.hub.pages[p].there {
			r.listed |= 1 << p
		}
	}
	if w.hub.pages[activityPart].there {
		r.listed |= 1 << activityPart
	}
	r.unwritten = 1<<len(w.hub.pages) - 1
}

func (m upModel) decideRoot(w *upWorld, r *upRelay) {
	known, source := clusterUID(r.known), clusterUID(r.source.root.cluster)
	if m.bugs.has(noIdentity) {
		known = source
	}
	r.root = decideRoot(m.compare(r.source.root, r.target, r.live), known, source)
	if m.bugs.has(neverRewrites) && r.target.there && r.target.sequence == r.source.root.sequence {
		r.root = keepCopy
	}
	r.result = r.root
	switch {
	case r.root == rereadSource:
		r.pc = upRereadRoot
	case r.root == otherCluster || r.root == copyIsNewer:
		r.pc = upIdle
	case m.bugs.has(deletesBeforeRoot) && r.toDelete == 0 && m.unlistedMask(r) != 0:
		r.toDelete, r.pc = m.unlistedMask(r), upDeletePages
	case m.bugs.has(rootBeforePages) && r.root == overwriteCopy:
		r.pc = upWriteRoot
	default:
		r.page = 0
		r.pc = upPage
	}
	before := r.target
	r.target = reportObject{}
	switch {
	case r.pc == upRereadRoot && r.readsWhole:
		r.target = before
	case r.pc == upRereadRoot:
		r.target, r.rootFresh = w.hub.root, true
	}
	if r.root == keepCopy {
		r.equal.root = r.source.root
	}
}

func (m upModel) unlistedMask(r *upRelay) uint8 {
	return r.listed &^ r.source.lists &^ (1 << activityPart)
}

func (m upModel) nextPage(r *upRelay) {
	r.page++
	r.target, r.fresh = reportObject{}, false
	r.pc = upPage
	if r.page < m.pages {
		return
	}
	r.page, r.published, r.beats = 0, r.beats, false
	if r.root == overwriteCopy && !m.bugs.has(rootBeforePages) {
		r.pc = upWriteRoot
		return
	}
	m.afterRoot(r)
}

func (m upModel) afterRoot(r *upRelay) {
	for p := range m.pages {
		if r.source.lists&(1<<p) == 0 {
			r.equal.pages[p] = reportObject{}
		}
	}
	switch {
	case m.unlistedMask(r) == 0:
		m.afterPages(r)
	case m.bugs.has(deletesWithoutReread):
		r.toDelete, r.pc = m.unlistedMask(r), upDeletePages
	case r.cached && !m.bugs.has(deletesByCache):
		r.pc = upRelist
	default:
		r.pc = upRereadLists
	}
}

func (m upModel) readPage(w *upWorld, r *upRelay) string {
	page := r.source.pages[r.page]
	if r.source.lists&(1<<r.page) == 0 || !page.there || page.cluster != r.source.root.cluster {
		m.nextPage(r)
		return " skips a page"
	}
	m.readCopy(w, r)
	m.decidePage(r, false)
	return " reads a page on the hub"
}

func (m upModel) decidePage(r *upRelay, live bool) {
	action := decidePage(m.compare(r.source.pages[r.page], r.target, live))
	if m.bugs.has(pageBySequence) {
		action = decideCopy(m.compare(r.source.pages[r.page], r.target, live))
	}
	switch action {
	case rereadSource:
		r.pc = upRereadPage
	case overwriteCopy:
		r.pc = upWritePage
	case keepCopy:
		r.equal.pages[r.page] = r.source.pages[r.page]
		m.nextPage(r)
	default:
		m.nextPage(r)
	}
}

// isRefused reports whether the hub takes no write of a page.
func (m upModel) isRefused(page uint8) bool { return m.refuses && page == 0 }

func (m upModel) writePage(w *upWorld, r *upRelay) (what, violation string) {
	if m.isRefused(r.page) {
		if m.nextPage(r); m.bugs.has(stopsAtRefusal) {
			r.pc = upIdle
		}
		return " is refused a page", ""
	}
	if !r.fresh && !m.bugs.has(noGuard) {
		r.pc = upIdle
		return " fails to write a page", ""
	}
	p := r.page
	violation = replacedByOlder("page", w.hub.pages[p], r.source.pages[p])
	w.hub.pages[p], r.equal.pages[p] = r.source.pages[p], r.source.pages[p]
	w.touchPage(p)
	m.nextPage(r)
	return " writes a page", violation
}

// replacedByOlder returns a violation if a write replaces newer content on the hub. A
// higher sequence of the same cluster is newer, whatever the member was restored to.
func replacedByOlder(what string, old, by reportObject) string {
	switch {
	case !old.there || old.edited || by.age >= old.age:
		return ""
	case by.cluster == old.cluster && by.sequence > old.sequence:
		return ""
	}
	return "an older " + what + " replaced a newer one"
}

func (m upModel) writeRoot(w *upWorld, r *upRelay) (what, violation string) {
	if !r.rootFresh && !m.bugs.has(noGuard) {
		r.pc = upIdle
		return " fails to write the root", ""
	}
	source := r.source.root
	violation = replacedByOlder("root", w.hub.root, source)
	if source.cluster != r.known && w.hub.root.cluster == r.known {
		violation = "another cluster's report was carried"
	}
	for p := range m.pages {
		page, copied := r.source.pages[p], w.hub.pages[p]
		listed := r.source.lists&(1<<p) != 0 && page.there && page.cluster == source.cluster
		if violation == "" && listed && !m.isRefused(p) && w.edits == 0 && w.restores == 0 && (!copied.there || copied.age < page.age) {
			violation = "a root was copied before its page"
		}
	}
	w.hub.root, w.hub.lists, r.equal.root = source, r.source.lists, source
	w.touchRoot()
	if m.bugs.has(rootBeforePages) {
		r.root, r.page, r.pc = keepCopy, 0, upPage
		return " writes the root", violation
	}
	m.afterRoot(r)
	return " writes the root", violation
}

func (m upModel) rereadLists(w *upWorld, r *upRelay) {
	m.afterPages(r)
	if w.currentReport().root != r.source.root {
		return
	}
	var names []string
	lists := map[string]bool{}
	for p := range m.pages {
		if r.listed&(1<<p) != 0 {
			names = append(names, string(rune('0'+p)))
		}
		lists[string(rune('0'+p))] = r.source.lists&(1<<p) != 0
	}
	for _, n := range unlistedPages(names, lists) {
		r.toDelete |= 1 << (n[0] - '0')
		r.pc = upDeletePages
	}
}

// deletePages deletes the unlisted pages in one step: each delete has its own
// precondition.
func (m upModel) deletePages(w *upWorld, r *upRelay) (what, violation string) {
	now := w.currentReport()
	for p := range m.pages {
		if r.toDelete&(1<<p) == 0 || r.unwritten&(1<<p) == 0 && !m.bugs.has(noGuard) {
			continue
		}
		switch {
		case w.hub.lists&(1<<p) != 0 && w.hub.root.there:
			violation = "a page was deleted that the hub's root lists"
		case now.lists&(1<<p) != 0 && now.root.there && now.pages[p] == w.hub.pages[p]:
			violation = "a page was deleted that the member's root lists"
		}
		w.hub.pages[p] = reportObject{}
		w.touchPage(p)
	}
	m.afterPages(r)
	if m.bugs.has(deletesBeforeRoot) && r.root == overwriteCopy {
		r.page, r.pc = 0, upPage
		r.listed &^= r.toDelete
	}
	return " deletes pages", violation
}
