package ledger_test

// transition is something that can happen in a world.
type transition struct {
	next      clusterState
	violation string
	// fault: it need not happen; progress is to be possible without.
	fault bool
	// describe happened, only worked out when a trace is shown.
	describe func() string
}

// forEachTransition calls do with everything that can happen next.
func (s *scenario) forEachTransition(w *clusterState, do func(transition)) {
	emit := func(next clusterState, fault bool, what func() string) {
		s.normalize(&next)
		do(transition{next: next, violation: s.checkInvariants(&next), fault: fault, describe: what})
	}
	for who := range w.writers {
		if w.writers[who].pc == pcNone {
			continue
		}
		next := *w
		what, violation := s.stepWriter(&next, who)
		s.normalize(&next)
		if violation == "" {
			violation = s.checkInvariants(&next)
		}
		do(transition{next: next, violation: violation, describe: func() string { return string(rune('A'+who)) + " " + what }})
		if w.writers[who].pc != pcIdle {
			next := *w
			next.writers[who] = writer{}
			emit(next, true, func() string { return string(rune('A'+who)) + " crashes" })
		}
	}
	s.imageTransitions(w, do)
	s.storageTransitions(w, emit)
	s.manualTransitions(w, emit)
}

type transitionEmitter = func(next clusterState, fault bool, what func() string)

// imageTransitions are the writes of image status, by whichever agent: a live read of
// image and storage, and later the write, guarded by the resourceVersion.
func (s *scenario) imageTransitions(w *clusterState, do func(transition)) {
	for i := range s.images {
		im := w.images[i]
		if im.lifecycle == gone {
			continue
		}
		for a := uint8(1); int(a) <= s.attempts; a++ {
			k := s.attemptID(i, a)
			v := w.volumes[k]
			if im.ended >= a {
				continue
			}
			for kind, sees := range [...]bool{
				writeStarted:   v.dataVolumeExists() && im.begun < a,
				writeSucceeded: v.state == complete,
				// Failing, or lost, or of no use any more. One of no use must have
				// been seen: its creation may still be under way.
				writeFailed: v.state == failing || im.begun == a && !v.dataVolumeExists() ||
					im.lifecycle == deleting && contains(w.listed, k) && (v.dataVolumeExists() || s.hasBug(givesUpUnseen)),
			} {
				if !sees {
					continue
				}
				next := *w
				next.images[i].pendingWrite = uint8(kind)*16 + a
				s.normalize(&next)
				do(transition{next: next, describe: func() string {
					return "somebody sees that " + s.formatAttempts(1<<k, 0) + [...]string{"", " was begun", " succeeded", " failed"}[kind]
				}})
			}
		}
		if im.pendingWrite != 0 {
			next := *w
			violation := s.writeImageStatus(&next, i)
			s.normalize(&next)
			do(transition{next: next, violation: violation, describe: func() string { return "the status of that image is written" }})
		}
	}
}

func (s *scenario) writeImageStatus(w *clusterState, i int) string {
	im := &w.images[i]
	kind, a := im.pendingWrite/16, im.pendingWrite%16
	if s.hasBug(incrementsAttempts) {
		// Not by value, so that the write need not be guarded either: it stays
		// under way, and may arrive again.
		a = im.begun
		if kind == writeStarted {
			a++
		}
	} else {
		im.pendingWrite = 0
	}
	im.begun = max(im.begun, a)
	if kind == writeStarted {
		return ""
	}
	im.ended, im.outcome = a, kind-writeSucceeded+succeeded
	if int(a) > s.attempts || a > 0 && w.volumes[s.attemptID(i, a)].created == 0 && im.lifecycle == alive {
		return "S4: an attempt is counted that had no DataVolume"
	}
	return ""
}

func (s *scenario) storageTransitions(w *clusterState, emit transitionEmitter) {
	for k := range s.images * s.attempts {
		v, im := w.volumes[k], w.images[s.imageIndex(k)]
		set := func(state uint8, fault bool, what string) {
			next := *w
			next.volumes[k].state = state
			emit(next, fault, func() string { return what + " " + s.formatAttempts(1<<k, 0) })
		}
		switch v.state {
		case running:
			set(complete, false, "the import ends:")
			set(failing, false, "the import fails, and CDI begins it again:")
		case failing:
			set(complete, false, "the import ends:")
		case removing, clearing:
			set(absent, false, "claim and Pods are gone:")
		}
		if !v.dataVolumeExists() {
			continue
		}
		left := removing
		if v.state == complete {
			left = clearing
		}
		over := s.attemptEnded(w, k)
		kept := v.state == complete && im.lifecycle != gone && im.outcomeOf(s.attemptNumber(k)) == succeeded
		switch {
		case s.hasBug(neverRemoves):
		case contains(w.listed, k):
			early := s.hasBug(removesBeforeEndedMark) || s.hasBug(freesWithoutEndedMark)
			if !kept && (contains(w.ended, k) || early && over) || s.hasBug(tearsDownBesideLedger) && im.lifecycle == deleting {
				set(left, false, "somebody deletes what is left of")
			}
		case over && !kept:
			set(left, false, "somebody deletes the stray")
		case im.lifecycle == deleting:
			set(left, false, "somebody deletes, with its image,")
		}
		if w.lostVolumes < s.volumesDeletedByHand {
			next := *w
			next.lostVolumes++
			next.volumes[k].state = left
			emit(next, true, func() string { return "a person deletes DataVolume " + s.formatAttempts(1<<k, 0) })
		}
	}
	for i := range s.images {
		names := uint8(1<<s.attempts-1) << (i * s.attempts)
		left := w.listed & names
		if s.hasBug(tearsDownBesideLedger) {
			left = 0
		}
		for k, v := range w.volumes {
			if v.state != absent {
				left |= 1 << k & names
			}
		}
		live := func(to uint8, fault bool, what string) {
			next := *w
			next.images[i].lifecycle, next.images[i].pendingWrite = to, 0
			emit(next, fault, func() string { return what + " " + string(rune('a'+i)) })
		}
		if w.images[i].lifecycle == deleting && left == 0 {
			live(gone, false, "with nothing of it left, somebody lets go of image")
		}
		if w.images[i].lifecycle == alive && s.imagesDeleted {
			live(deleting, true, "a person deletes image")
		}
		if w.images[i].lifecycle != gone && s.finalizersRemoved {
			live(gone, true, "a person deletes, without its finalizer, image")
		}
	}
}

func (s *scenario) manualTransitions(w *clusterState, emit transitionEmitter) {
	if int(w.policy)+1 < len(s.budgets) {
		next := *w
		next.policy++
		for i := range next.writers {
			x := &next.writers[i]
			if x.pc > pcEarlyList && x.pc < pcCreate {
				x.maxPolicyBudget = max(x.maxPolicyBudget, s.budgets[next.policy])
			}
		}
		emit(next, true, func() string { return "the policy changes the budget" })
	}
	if s.staleAdmissionCache {
		next := *w
		next.cached = next.ledgerState
		next.cached.budget = 0
		if next.cached != w.cached {
			emit(next, false, func() string { return "the API server's cache follows" })
		}
	}
	if w.lostLedgers == s.ledgersLostByHand || w.exists == 0 {
		return
	}
	lose := func(to ledgerState, what string) {
		next := *w
		next.lostLedgers++
		next.excused |= w.listed &^ to.listed & w.transferringAttempts()
		next.ledgerState = to
		for i := range next.writers {
			next.writers[i].ledgerUnchanged = false
		}
		emit(next, true, func() string { return what })
	}
	lose(ledgerState{}, "a person deletes the ledger")
	if w.listed != 0 {
		lose(ledgerState{exists: 1, budget: w.budget}, "a person empties the ledger")
	}
	for k := range s.images * s.attempts {
		if contains(w.listed, k) {
			lose(ledgerState{exists: 1, budget: w.budget, listed: w.listed &^ (1 << k), ended: w.ended &^ (1 << k)},
				"a person takes from the ledger "+s.formatAttempts(1<<k, 0))
		}
	}
}
