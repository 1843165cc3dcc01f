package mailbox

// cachedRuns are the runs of a relay that trusts its caches. The list of the hub's copies is
// any of an earlier time: then a copy that it shows cannot be deleted any more.
func (m upModel) cachedRuns(w upWorld, i uint8, do func(transition[upWorld])) {
	who := string(rune('A' + i))
	w.relays[i].cached = true
	do(transition[upWorld]{next: w, what: who + " trusts its caches"})
	w.relays[i].pc = upRoot
	all := uint8(1<<m.pages - 1)
	if m.activity {
		all |= 1 << activityPart
	}
	for listed := range all + 1 {
		if listed&^all == 0 {
			next := w
			next.relays[i].listed = listed
			do(transition[upWorld]{next: next, what: who + " trusts its caches, with an old list of copies"})
		}
	}
}

// isKnown reports whether the copy of a source is not read: the cache shows it as it was when
// it was equal to this source, or to an earlier one.
func (r *upRelay) isKnown(equal, source reportObject) bool {
	return r.cached && equal.there && (equal == source || equal.cluster == source.cluster && equal.sequence < source.sequence)
}

// isHeartbeat reports whether the hub's root is left as it is, since the member's is only later.
func (m upModel) isHeartbeat(r *upRelay) bool {
	equal, source := r.equal.root, r.source.root
	return m.heartbeats && r.known == source.cluster && equal.sequence < source.sequence && r.isKnown(equal, source) &&
		(equal.content == source.content || m.bugs.has(beatsBySequence))
}

// checkHeartbeat returns what is wrong with a heartbeat for whoever reads the hub's copy now.
func (m upModel) checkHeartbeat(w *upWorld, r *upRelay) string {
	copied := w.hub.root
	if copied != r.equal.root && !m.bugs.has(beatsForAnyCopy) {
		return "" // it is not of this copy
	}
	return messageUnless(copied.cluster == r.source.root.cluster && copied.content == r.source.root.content, "a heartbeat says of a copy what the member does not")
}

// readCopy reads the copy of the current page, or takes it as it was when it was equal, or found
// equal when all were read.
func (m upModel) readCopy(w *upWorld, r *upRelay) {
	if whole := r.whole.pages[r.page]; r.readsWhole && decidePage(m.compare(r.source.pages[r.page], whole, false)) == keepCopy {
		r.target, r.fresh = whole, r.unwritten&(1<<r.page) != 0
		return
	}
	r.target, r.fresh = w.hub.pages[r.page], true
	if equal := r.equal.pages[r.page]; r.isKnown(equal, r.source.pages[r.page]) {
		r.target, r.fresh = equal, w.hub.pages[r.page] == equal
	}
}

// checkConfirmation returns what is wrong at the end of a run that confirms that the hub's
// copy is as new as the source. A run that trusts its caches confirms nothing.
func (m upModel) checkConfirmation(w *upWorld, r *upRelay) string {
	confirms := r.source.root.there && (r.result == keepCopy || r.result == overwriteCopy) && (!r.cached || m.bugs.has(confirmsFromCache))
	copied := w.hub.root
	if !confirms || r.touched || r.rootFresh && r.result == overwriteCopy {
		return ""
	}
	return messageUnless(copied.there && (copied.cluster != r.source.root.cluster || copied.sequence >= r.source.root.sequence), "a copy was confirmed that is older than its source")
}

// relistCopies lists the copies live before a page is deleted. Nothing is deleted if the hub
// has another root.
func (m upModel) relistCopies(w *upWorld, r *upRelay) {
	r.listed = 0
	m.listCopies(w, r)
	if w.hub.root != r.source.root || m.unlistedMask(r) == 0 {
		m.afterPages(r)
		return
	}
	r.pc = upRereadLists
}
