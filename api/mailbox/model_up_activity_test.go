package mailbox

// afterPages begins with the activity once all pages are done.
func (m upModel) afterPages(r *upRelay) {
	r.pc = upIdle
	if m.activity {
		r.page, r.pc = activityPart, upActivity
	}
}

// hasActivity reports whether an activity is of the cluster of the root that is copied.
func (r *upRelay) hasActivity(activity reportObject) bool {
	return activity.there && activity.cluster == r.source.root.cluster
}

// activityRequest performs the next request of a relay for the activity.
func (m upModel) activityRequest(w *upWorld, r *upRelay) (what, violation string) {
	now := w.currentReport().pages[activityPart]
	switch r.pc {
	case upActivity:
		switch {
		case r.hasActivity(r.source.pages[activityPart]):
			m.readCopy(w, r)
			m.decideActivity(r, false)
		case r.listed&(1<<activityPart) == 0:
			r.pc = upIdle
		case m.bugs.has(deletesWithoutReread):
			r.pc = upDeleteActivity
		default:
			r.pc = upRecheckActivity
		}
		return " reads the activity on the hub", ""
	case upRereadActivity:
		r.pc = upIdle
		if m.bugs.has(neverRereads) {
			now = r.source.pages[activityPart]
		}
		if r.hasActivity(now) {
			r.source.pages[activityPart] = now
			m.decideActivity(r, true)
		}
		return " reads the activity live", ""
	case upWriteActivity:
		r.pc = upIdle
		if !r.fresh && !m.bugs.has(noGuard) {
			return " fails to write the activity", ""
		}
		violation = replacedByOlder("activity", w.hub.pages[activityPart], r.source.pages[activityPart])
		w.hub.pages[activityPart], r.equal.pages[activityPart] = r.source.pages[activityPart], r.source.pages[activityPart]
		w.touchPage(activityPart)
		return " writes the activity", violation
	case upRecheckActivity:
		r.pc = upIdle
		if !r.hasActivity(now) {
			r.pc = upDeleteActivity
		}
		return " checks live that there is no activity", ""
	default:
		r.pc = upIdle
		if r.unwritten&(1<<activityPart) == 0 && !m.bugs.has(noGuard) {
			return " fails to delete the activity", ""
		}
		if now.there && now == w.hub.pages[activityPart] && r.hasActivity(now) {
			violation = "an activity was deleted that the member has"
		}
		w.hub.pages[activityPart] = reportObject{}
		w.touchPage(activityPart)
		return " deletes the activity", violation
	}
}

func (m upModel) decideActivity(r *upRelay, live bool) {
	action := decidePage(m.compare(r.source.pages[activityPart], r.target, live))
	if m.bugs.has(pageBySequence) {
		action = decideCopy(m.compare(r.source.pages[activityPart], r.target, live))
	}
	switch action {
	case rereadSource:
		r.pc = upRereadActivity
	case overwriteCopy:
		r.pc = upWriteActivity
	case keepCopy:
		r.equal.pages[activityPart], r.pc = r.source.pages[activityPart], upIdle
	default:
		r.pc = upIdle
	}
}
