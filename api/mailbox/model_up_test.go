package mailbox

import "cmp"

const maxPages = 2

// reportObject is a root or a page. age is the number of the member's state in which it
// came to be what the member shows: what is restored is younger than what it
// replaces.
type reportObject struct {
	there, edited          bool
	sequence, cluster, age uint8
}

// reportSide is what one side holds. lists is a bit per page that the root names.
type reportSide struct {
	root  reportObject
	lists uint8
	pages [maxPages]reportObject
}

type upRelay struct {
	pc, page uint8
	known    uint8
	// source as it was at one time, and when.
	source reportSide
	// listed are the pages that were on the hub at the beginning, unmoved those of
	// them that were not written since.
	listed, unmoved uint8
	// target is the copy that was read last, fresh that it was not written since.
	target          reportObject
	fresh           bool
	root            action
	rootFresh, live bool
	// swept are the pages to be deleted.
	swept uint8
	// told is what the relay says in the end.
	told action
}

const (
	upIdle uint8 = iota
	upList
	upRoot
	upAskRoot
	upPage
	upAskPage
	upPutPage
	upPutRoot
	upAskLists
	upSweep
)

type upWorld struct {
	history [maxStates]reportSide
	states  uint8
	// known is the cluster that the hub knows; accepted: not long ago.
	known  uint8
	hub    reportSide
	saved  reportSide
	backup bool
	relays [2]upRelay
	// What happened so far, of what happens so often only.
	restores, edits, rebuilds uint8
}

func (w *upWorld) currentReport() reportSide { return w.history[w.states-1] }

func (w *upWorld) touchRoot() {
	for i := range w.relays {
		w.relays[i].rootFresh = false
	}
}

func (w *upWorld) touchPage(p uint8) {
	for i := range w.relays {
		r := &w.relays[i]
		r.unmoved &^= 1 << p
		if r.page == p {
			r.fresh = false
		}
	}
}

type upModel struct {
	bugs                                     plantedBug
	pages, relays, restores, edits, rebuilds uint8
	// states of the member that the model goes through.
	states uint8
}

func (m upModel) compare(source, target reportObject, live bool) comparison {
	l := comparison{
		exists: target.there, sourceLive: live || m.bugs.has(neverAsks),
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

// relaySteps does the next step of one relay: each is one request.
func (m upModel) relaySteps(w upWorld, i uint8, do func(transition[upWorld])) {
	who := string(rune('A' + i))
	if w.relays[i].pc == upIdle {
		for n := range w.states {
			// A hub that has accepted another cluster just now has relays that do not
			// know it yet.
			for known := range w.known + 1 {
				next := w
				next.relays[i] = upRelay{pc: upList, known: known, source: w.history[n]}
				do(transition[upWorld]{next: next, what: who + " reads a report from its cache"})
			}
		}
		return
	}
	next := w
	r := &next.relays[i]
	what, violation := m.relayRequest(&next, r)
	if r.pc == upIdle {
		*r = upRelay{told: r.told}
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
		for p := range m.pages {
			if w.hub.pages[p].there {
				r.listed |= 1 << p
			}
		}
		r.unmoved = r.listed
		r.pc = upRoot
		return " lists the pages on the hub", ""
	case upRoot:
		r.target, r.rootFresh = w.hub.root, true
		m.decideRoot(w, r)
		return " reads the hub's root", ""
	case upAskRoot:
		if !m.bugs.has(neverAsks) && w.currentReport().root != r.source.root {
			r.source = w.currentReport()
		}
		if !r.source.root.there {
			r.pc = upIdle
			return " finds that there is no report any more", ""
		}
		r.live = true
		m.decideRoot(w, r)
		return " asks the member for its root", ""
	case upPage:
		return m.readPage(w, r), ""
	case upAskPage:
		page := w.currentReport().pages[r.page]
		if m.bugs.has(neverAsks) {
			page = r.source.pages[r.page]
		}
		if !page.there || page.cluster != r.source.root.cluster {
			r.source.pages[r.page] = reportObject{}
			m.nextPage(r)
			return " finds that there is no page any more", ""
		}
		r.source.pages[r.page] = page
		m.decidePage(r, true)
		return " asks the member for a page", ""
	case upPutPage:
		return m.putPage(w, r)
	case upPutRoot:
		return m.putRoot(w, r)
	case upAskLists:
		m.askLists(w, r)
		return " asks the member what its root lists", ""
	default:
		return m.deletePages(w, r)
	}
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
	r.told = r.root
	switch {
	case r.root == rereadSource:
		r.pc = upAskRoot
	case r.root == otherCluster || r.root == copyIsNewer:
		r.pc = upIdle
	case m.bugs.has(sweepsBeforeRoot) && r.swept == 0 && m.unlistedMask(r) != 0:
		r.swept, r.pc = m.unlistedMask(r), upSweep
	case m.bugs.has(rootBeforePages) && r.root == overwriteCopy:
		r.pc = upPutRoot
	default:
		r.page = 0
		r.pc = upPage
	}
	r.target = reportObject{}
	if r.pc == upAskRoot {
		r.target = w.hub.root
	}
}

func (m upModel) unlistedMask(r *upRelay) uint8 { return r.listed &^ r.source.lists }

func (m upModel) nextPage(r *upRelay) {
	r.page++
	r.target, r.fresh = reportObject{}, false
	r.pc = upPage
	if r.page < m.pages {
		return
	}
	r.page = 0
	if r.root == overwriteCopy && !m.bugs.has(rootBeforePages) {
		r.pc = upPutRoot
		return
	}
	m.afterRoot(r)
}

func (m upModel) afterRoot(r *upRelay) {
	switch {
	case m.unlistedMask(r) == 0:
		r.pc = upIdle
	case m.bugs.has(sweepsUnasked):
		r.swept, r.pc = m.unlistedMask(r), upSweep
	default:
		r.pc = upAskLists
	}
}

func (m upModel) readPage(w *upWorld, r *upRelay) string {
	page := r.source.pages[r.page]
	if r.source.lists&(1<<r.page) == 0 || !page.there || page.cluster != r.source.root.cluster {
		m.nextPage(r)
		return " passes over a page"
	}
	r.target, r.fresh = w.hub.pages[r.page], true
	m.decidePage(r, false)
	return " reads a page on the hub"
}

func (m upModel) decidePage(r *upRelay, live bool) {
	v := decidePage(m.compare(r.source.pages[r.page], r.target, live))
	if m.bugs.has(pageBySequence) {
		v = decideCopy(m.compare(r.source.pages[r.page], r.target, live))
	}
	switch v {
	case rereadSource:
		r.pc = upAskPage
	case overwriteCopy:
		r.pc = upPutPage
	default:
		m.nextPage(r)
	}
}

func (m upModel) putPage(w *upWorld, r *upRelay) (what, violation string) {
	if !r.fresh && !m.bugs.has(noGuard) {
		r.pc = upIdle
		return " is refused the write of a page", ""
	}
	p := r.page
	violation = replacedByOlder("page", w.hub.pages[p], r.source.pages[p])
	w.hub.pages[p] = r.source.pages[p]
	w.touchPage(p)
	m.nextPage(r)
	return " writes a page", violation
}

// replacedByOlder tells that a write takes the hub back. A higher sequence of the same
// cluster is newer by its own account, whatever the member was restored to.
func replacedByOlder(what string, old, by reportObject) string {
	switch {
	case !old.there || old.edited || by.age >= old.age:
		return ""
	case by.cluster == old.cluster && by.sequence > old.sequence:
		return ""
	}
	return "an older " + what + " replaced a newer one"
}

func (m upModel) putRoot(w *upWorld, r *upRelay) (what, violation string) {
	if !r.rootFresh && !m.bugs.has(noGuard) {
		r.pc = upIdle
		return " is refused the write of the root", ""
	}
	source := r.source.root
	violation = replacedByOlder("root", w.hub.root, source)
	if source.cluster != r.known && w.hub.root.cluster == r.known {
		violation = "another cluster's report was carried"
	}
	for p := range m.pages {
		page, copied := r.source.pages[p], w.hub.pages[p]
		listed := r.source.lists&(1<<p) != 0 && page.there && page.cluster == source.cluster
		if violation == "" && listed && w.edits == 0 && w.restores == 0 && (!copied.there || copied.age < page.age) {
			violation = "a root was carried before its page"
		}
	}
	w.hub.root, w.hub.lists = source, r.source.lists
	w.touchRoot()
	if m.bugs.has(rootBeforePages) {
		r.root, r.page, r.pc = keepCopy, 0, upPage
		return " writes the root", violation
	}
	m.afterRoot(r)
	return " writes the root", violation
}

func (m upModel) askLists(w *upWorld, r *upRelay) {
	r.pc = upIdle
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
		r.swept |= 1 << (n[0] - '0')
		r.pc = upSweep
	}
}

// deletePages deletes what is to be deleted, all at once: each is guarded for itself.
func (m upModel) deletePages(w *upWorld, r *upRelay) (what, violation string) {
	now := w.currentReport()
	for p := range m.pages {
		if r.swept&(1<<p) == 0 || r.unmoved&(1<<p) == 0 && !m.bugs.has(noGuard) {
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
	r.pc = upIdle
	if m.bugs.has(sweepsBeforeRoot) && r.root == overwriteCopy {
		r.page, r.pc = 0, upPage
		r.listed &^= r.swept
	}
	return " deletes pages", violation
}
