package queue_test

// move is something that can happen in a world.
type move struct {
	next      world
	violation string
	// fault: it need not happen; progress is to be possible without.
	fault bool
	// what happened, only worked out when a trace is shown.
	what func() string
}

// moves calls do with everything that can happen next.
func (s *scenario) moves(w *world, do func(move)) {
	emit := func(next world, fault bool, what func() string) {
		s.settle(&next)
		do(move{next: next, violation: s.violated(&next), fault: fault, what: what})
	}
	for who := range w.writers {
		if w.writers[who].pc == pcNone {
			continue
		}
		next := *w
		what, violation := s.step(&next, who)
		s.settle(&next)
		if violation == "" {
			violation = s.violated(&next)
		}
		do(move{next: next, violation: violation, what: func() string { return string(rune('A'+who)) + " " + what }})
		if w.writers[who].pc != pcIdle {
			next := *w
			next.writers[who] = writer{}
			emit(next, true, func() string { return string(rune('A'+who)) + " crashes" })
		}
	}
	s.imageMoves(w, do)
	s.storageMoves(w, emit)
	s.handMoves(w, emit)
}

type emitter = func(next world, fault bool, what func() string)

// imageMoves are the writes of image status, by whichever agent: a live read of
// image and storage, and later the write, guarded by the resourceVersion.
func (s *scenario) imageMoves(w *world, do func(move)) {
	for i := range s.images {
		im := w.images[i]
		if im.life == gone {
			continue
		}
		for a := uint8(1); int(a) <= s.attempts; a++ {
			k := s.nameOf(i, a)
			v := w.volumes[k]
			if im.ended >= a {
				continue
			}
			for kind, sees := range [...]bool{
				sayBegun:     v.object() && im.begun < a,
				saySucceeded: v.state == complete,
				// Failing, or lost, or of no use any more. One of no use must have
				// been seen: its creation may still be under way.
				sayFailed: v.state == failing || im.begun == a && !v.object() ||
					im.life == deleting && has(w.listed, k) && (v.object() || s.has(givesUpUnseen)),
			} {
				if !sees {
					continue
				}
				next := *w
				next.images[i].late = uint8(kind)*16 + a
				s.settle(&next)
				do(move{next: next, what: func() string {
					return "somebody sees that " + s.text(1<<k, 0) + [...]string{"", " was begun", " succeeded", " failed"}[kind]
				}})
			}
		}
		if im.late != 0 {
			next := *w
			violation := s.say(&next, i)
			s.settle(&next)
			do(move{next: next, violation: violation, what: func() string { return "the status of that image is written" }})
		}
	}
}

func (s *scenario) say(w *world, i int) string {
	im := &w.images[i]
	kind, a := im.late/16, im.late%16
	if s.has(incrementsAttempts) {
		// Not by value, so that the write need not be guarded either: it stays
		// under way, and may arrive again.
		a = im.begun
		if kind == sayBegun {
			a++
		}
	} else {
		im.late = 0
	}
	im.begun = max(im.begun, a)
	if kind == sayBegun {
		return ""
	}
	im.ended, im.outcome = a, kind-saySucceeded+succeeded
	if int(a) > s.attempts || a > 0 && w.volumes[s.nameOf(i, a)].created == 0 && im.life == alive {
		return "S4: an attempt is counted that had no DataVolume"
	}
	return ""
}

func (s *scenario) storageMoves(w *world, emit emitter) {
	for k := range s.images * s.attempts {
		v, im := w.volumes[k], w.images[s.imageOf(k)]
		set := func(state uint8, fault bool, what string) {
			next := *w
			next.volumes[k].state = state
			emit(next, fault, func() string { return what + " " + s.text(1<<k, 0) })
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
		if !v.object() {
			continue
		}
		left := removing
		if v.state == complete {
			left = clearing
		}
		over := s.over(w, k)
		kept := v.state == complete && im.life != gone && im.outcomeOf(s.attemptOf(k)) == succeeded
		switch {
		case s.has(neverRemoves):
		case has(w.listed, k):
			early := s.has(removesBeforeEndedMark) || s.has(freesWithoutEndedMark)
			if !kept && (has(w.ended, k) || early && over) || s.has(tearsDownBesideLedger) && im.life == deleting {
				set(left, false, "somebody deletes what is left of")
			}
		case over && !kept:
			set(left, false, "somebody deletes the stray")
		case im.life == deleting:
			set(left, false, "somebody deletes, with its image,")
		}
		if w.lostVolumes < s.handVolumes {
			next := *w
			next.lostVolumes++
			next.volumes[k].state = left
			emit(next, true, func() string { return "a person deletes DataVolume " + s.text(1<<k, 0) })
		}
	}
	for i := range s.images {
		names := uint8(1<<s.attempts-1) << (i * s.attempts)
		left := w.listed & names
		if s.has(tearsDownBesideLedger) {
			left = 0
		}
		for k, v := range w.volumes {
			if v.state != absent {
				left |= 1 << k & names
			}
		}
		live := func(to uint8, fault bool, what string) {
			next := *w
			next.images[i].life, next.images[i].late = to, 0
			emit(next, fault, func() string { return what + " " + string(rune('a'+i)) })
		}
		if w.images[i].life == deleting && left == 0 {
			live(gone, false, "with nothing of it left, somebody lets go of image")
		}
		if w.images[i].life == alive && s.deletes {
			live(deleting, true, "a person deletes image")
		}
		if w.images[i].life != gone && s.forces {
			live(gone, true, "a person deletes, without its finalizer, image")
		}
	}
}

func (s *scenario) handMoves(w *world, emit emitter) {
	if int(w.policy)+1 < len(s.budgets) {
		next := *w
		next.policy++
		for i := range next.writers {
			x := &next.writers[i]
			if x.pc > pcEarlyList && x.pc < pcCreate {
				x.most = max(x.most, s.budgets[next.policy])
			}
		}
		emit(next, true, func() string { return "the policy changes the budget" })
	}
	if s.stale {
		next := *w
		next.cached = next.ledger
		next.cached.budget = 0
		if next.cached != w.cached {
			emit(next, false, func() string { return "the API server's cache follows" })
		}
	}
	if w.lostLedgers == s.handLedgers || w.exists == 0 {
		return
	}
	lose := func(to ledger, what string) {
		next := *w
		next.lostLedgers++
		next.debt |= w.listed &^ to.listed & w.transferring()
		next.ledger = to
		for i := range next.writers {
			next.writers[i].fresh = false
		}
		emit(next, true, func() string { return what })
	}
	lose(ledger{}, "a person deletes the ledger")
	if w.listed != 0 {
		lose(ledger{exists: 1, budget: w.budget}, "a person empties the ledger")
	}
	for k := range s.images * s.attempts {
		if has(w.listed, k) {
			lose(ledger{exists: 1, budget: w.budget, listed: w.listed &^ (1 << k), ended: w.ended &^ (1 << k)},
				"a person takes from the ledger "+s.text(1<<k, 0))
		}
	}
}
