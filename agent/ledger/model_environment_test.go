package ledger_test

import "github.com/pelotech/ot-fleet/api/apitest/modelcheck"

type step = modelcheck.Step[clusterState]

// ForEachStep implements modelcheck.Model.
func (s *scenario) ForEachStep(c *clusterState, visit func(step)) {
	emit := func(next clusterState, fault bool, describe func() string) {
		s.normalize(&next)
		visit(step{Next: next, Violation: s.checkInvariants(&next), Fault: fault, Describe: describe})
	}
	for who := range c.writers {
		if c.writers[who].pc == pcNone {
			continue
		}
		next := *c
		what, violation := s.stepWriter(&next, who)
		s.normalize(&next)
		if violation == "" {
			violation = s.checkInvariants(&next)
		}
		visit(step{Next: next, Violation: violation, Describe: func() string { return string(rune('A'+who)) + " " + what }})
		s.cachedReadSteps(c, who, emit)
		if c.writers[who].pc != pcIdle {
			next := *c
			next.writers[who] = writer{}
			emit(next, true, func() string { return string(rune('A'+who)) + " crashes" })
		}
	}
	s.imageSteps(c, visit)
	s.importSteps(c, emit)
	s.deletionSteps(c, emit)
	s.manualSteps(c, emit)
}

// cachedReadSteps are a writer's reads of an image from its cache, which may be of any earlier
// time: it shows the outcome that is stored, or none.
func (s *scenario) cachedReadSteps(c *clusterState, who int, emit emitter) {
	wr := &c.writers[who]
	if wr.pc != pcFacts || wr.facts[wr.position] != unread {
		return
	}
	id := int(wr.position)
	stored := c.images[s.imageIndex(id)].outcomeOf(s.attemptNumber(id))
	for _, shown := range []uint8{noOutcome, stored} {
		next := *c
		if !s.readCachedImage(&next, &next.writers[who], id, shown) {
			continue
		}
		s.advanceWriter(&next.writers[who])
		emit(next, false, func() string {
			return string(rune('A'+who)) + " reads the image of slot " + s.formatAttempts(1<<id, 0) + " from its cache" + []string{"", ", succeeded", ", failed"}[shown]
		})
	}
}

type emitter = func(next clusterState, fault bool, describe func() string)

// imageSteps are the status writes of images, by any agent: a live read of image and
// storage, and later the write, with the resourceVersion as precondition.
func (s *scenario) imageSteps(c *clusterState, visit func(step)) {
	for i := range s.images {
		im := c.images[i]
		if im.lifecycle >= released {
			continue
		}
		for a := uint8(1); int(a) <= s.attempts; a++ {
			k := s.attemptID(i, a)
			v := c.volumes[k]
			if im.ended >= a {
				continue
			}
			for kind, sees := range [...]bool{
				writeStarted:   v.dataVolumeExists() && im.started < a,
				writeSucceeded: v.state == complete,
				// Failing, lost, or unneeded. An unneeded DataVolume must have been
				// seen: its create request may be delayed.
				writeFailed: v.state == failing || im.started == a && !v.dataVolumeExists() ||
					im.lifecycle == deleting && contains(c.listed, k) && (v.dataVolumeExists() || s.hasBug(failsUnseenAttempts)),
			} {
				if !sees {
					continue
				}
				next := *c
				next.images[i].pendingWrite = uint8(kind)*16 + a
				s.normalize(&next)
				visit(step{Next: next, Describe: func() string {
					return "an agent sees that " + s.formatAttempts(1<<k, 0) + [...]string{"", " has started", " has succeeded", " has failed"}[kind]
				}})
			}
		}
		if im.pendingWrite != 0 {
			next := *c
			violation := s.writeImageStatus(&next, i)
			s.normalize(&next)
			visit(step{Next: next, Violation: violation, Describe: func() string { return "the status of that image is written" }})
		}
	}
}

func (s *scenario) writeImageStatus(c *clusterState, i int) string {
	im := &c.images[i]
	kind, a := im.pendingWrite/16, im.pendingWrite%16
	if s.hasBug(incrementsAttempts) {
		// An increment needs no resourceVersion: the write stays pending, and may
		// arrive again.
		a = im.started
		if kind == writeStarted {
			a++
		}
	} else {
		im.pendingWrite = 0
	}
	im.started = max(im.started, a)
	if kind == writeStarted {
		return ""
	}
	im.ended, im.outcome = a, kind-writeSucceeded+succeeded
	if int(a) > s.attempts || a > 0 && c.volumes[s.attemptID(i, a)].created == 0 && im.lifecycle == alive {
		return "S4: an attempt is counted that had no DataVolume"
	}
	return ""
}

// importSteps are CDI's, and deletions of DataVolumes.
func (s *scenario) importSteps(c *clusterState, emit emitter) {
	for k := range s.images * s.attempts {
		v, im := c.volumes[k], c.images[s.imageIndex(k)]
		set := func(state uint8, what string) {
			next := *c
			next.volumes[k].state = state
			emit(next, false, func() string { return what + " " + s.formatAttempts(1<<k, 0) })
		}
		switch v.state {
		case running:
			set(complete, "the import succeeds:")
			set(failing, "the import fails, and CDI restarts it:")
		case failing:
			set(complete, "the import succeeds:")
		case removing, clearing:
			set(absent, "claim and Pods are gone:")
		}
		if !v.dataVolumeExists() {
			continue
		}
		left := removing
		if v.state == complete {
			left = clearing
		}
		over := s.attemptEnded(c, k)
		kept := v.state == complete && im.lifecycle < released && im.outcomeOf(s.attemptNumber(k)) == succeeded
		switch {
		case s.hasBug(neverRemoves):
		case contains(c.listed, k):
			early := s.hasBug(removesBeforeEndedMark) || s.hasBug(freesWithoutEndedMark)
			if !kept && (contains(c.ended, k) || early && over) || s.hasBug(tearsDownBesideLedger) && im.lifecycle == deleting {
				set(left, "an agent deletes the objects of")
			}
		case over && !kept:
			set(left, "an agent deletes the stray")
		case im.lifecycle == deleting:
			set(left, "an agent deletes, with its image,")
		}
		if c.lostVolumes < s.volumesDeletedByHand {
			next := *c
			next.lostVolumes++
			next.volumes[k].state = left
			emit(next, true, func() string { return "a person deletes DataVolume " + s.formatAttempts(1<<k, 0) })
		}
	}
}

// deletionSteps are those of images.
func (s *scenario) deletionSteps(c *clusterState, emit emitter) {
	for i := range s.images {
		ids := uint8(1<<s.attempts-1) << (i * s.attempts)
		left := c.listed & ids
		if s.hasBug(tearsDownBesideLedger) {
			left = 0
		}
		for k, v := range c.volumes {
			if v.state != absent {
				left |= 1 << k & ids
			}
		}
		setLifecycle := func(to uint8, fault bool, what string) {
			next := *c
			next.images[i].lifecycle, next.images[i].pendingWrite = to, 0
			emit(next, fault, func() string { return what + " " + string(rune('a'+i)) })
		}
		if c.images[i].lifecycle == deleting && left == 0 {
			setLifecycle(gone, false, "an agent removes the finalizer of image")
		}
		if c.images[i].lifecycle == alive && s.imagesDeleted {
			setLifecycle(deleting, true, "a person deletes image")
		}
		if c.images[i].lifecycle == deleting && s.foreignFinalizers {
			setLifecycle(released, true, "a person removes the agent's finalizer alone of image")
		}
		if c.images[i].lifecycle != gone && s.finalizersRemoved {
			setLifecycle(gone, true, "a person removes the finalizer of image")
		}
	}
}

// manualSteps are changes of the policy and edits of the ledger, and the updates of
// the API server's cache.
func (s *scenario) manualSteps(c *clusterState, emit emitter) {
	if int(c.policy)+1 < len(s.budgets) {
		next := *c
		next.policy++
		for i := range next.writers {
			wr := &next.writers[i]
			if wr.pc > pcEarlyList && wr.pc < pcCreate {
				wr.maxPolicyBudget = max(wr.maxPolicyBudget, s.budgets[next.policy])
			}
		}
		emit(next, true, func() string { return "the policy changes the budget" })
	}
	if s.staleAdmissionCache {
		next := *c
		next.cached = next.ledgerState
		next.cached.budget = 0
		if next.cached != c.cached {
			emit(next, false, func() string { return "the API server's cache is updated" })
		}
	}
	if c.lostLedgers == s.ledgersLostByHand || c.exists == 0 {
		return
	}
	lose := func(to ledgerState, what string) {
		next := *c
		next.lostLedgers++
		next.excused |= c.listed &^ to.listed & c.transferringAttempts()
		next.ledgerState = to
		for i := range next.writers {
			next.writers[i].ledgerUnchanged = false
		}
		emit(next, true, func() string { return what })
	}
	lose(ledgerState{}, "a person deletes the ledger")
	if c.listed != 0 {
		lose(ledgerState{exists: 1, budget: c.budget}, "a person empties the ledger")
	}
	for k := range s.images * s.attempts {
		if contains(c.listed, k) {
			lose(ledgerState{exists: 1, budget: c.budget, listed: c.listed &^ (1 << k), ended: c.ended &^ (1 << k)},
				"a person removes from the ledger "+s.formatAttempts(1<<k, 0))
		}
	}
}
