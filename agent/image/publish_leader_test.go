package image_test

import "fmt"

func (p *publishScenario) leaderSteps(c *publishState, who int, visit func(publishStep)) {
	step := func(what string, change func(*publishState, *publishLeader)) {
		next := *c
		change(&next, &next.leaders[who])
		p.emit(next, visit, false, "leader ", who, " ", what)
	}
	k := c.leaders[who]
	start := func(k *publishLeader, live bool) {
		todo := p.decide(*k, live)
		if todo.needsLive {
			if live {
				panic("a live View must suffice")
			}
			k.pc = confirm
			return
		}
		*k = publishLeader{pc: act, imageUnchanged: k.imageUnchanged, todo: todo}
		p.finish(k)
	}
	switch k.pc {
	case noLeader:
		return
	case idle:
		if !c.gone {
			step("reads its caches", func(c *publishState, k *publishLeader) {
				*k = publishLeader{imageUnchanged: true, status: c.status, specEdit: c.specEdit, deleted: c.deleted, attempts: c.attempts, slot: c.slot, ds: c.ds, hour: c.hour, clone: c.clone}
				start(k, false)
			})
		}
	case confirm:
		step("reads the image and the DataSource live", func(c *publishState, k *publishLeader) {
			if !k.imageUnchanged {
				*k = publishLeader{}
				return
			}
			k.pc, k.ds, k.hour = relist, c.ds, c.hour
		})
	case relist:
		step("lists DataVolumes live", func(c *publishState, k *publishLeader) {
			if p.bug != listsClonesInCache {
				k.clone = c.clone
			}
			k.attempts, k.slot = c.attempts, c.slot
			start(k, true)
		})
	case act:
		next := *c
		what := p.perform(&next, who)
		p.emit(next, visit, false, "leader ", who, " ", what)
	}
	if k.pc != idle {
		next := *c
		next.leaders[who] = publishLeader{}
		p.emit(next, visit, true, "leader ", who, " crashes")
	}
}

// perform carries out the next write of a decision.
func (p *publishScenario) perform(c *publishState, who int) (what string) {
	k := &c.leaders[who]
	t := &k.todo
	switch {
	case t.removeFinalizer:
		if k.imageUnchanged {
			c.gone = true
			c.markImageWritten(-1)
		}
		*t, what = publishActions{}, "removes the finalizer"
	case t.writeStatus && (c.gone || !k.imageUnchanged):
		*k = publishLeader{}
		return "stores a status: conflict"
	case t.writeStatus:
		c.status, t.writeStatus = t.status, false
		c.markImageWritten(who)
		what = "stores a status"
	case t.operation != 0:
		what = fmt.Sprint([]string{"", "creates", "applies", "deletes"}[t.operation], " the DataSource, target ", t.target)
		matches := c.ds.version == t.version // 0 for a creation
		if p.bug == changesUnguarded && t.operation == 2 {
			matches = true
		}
		if !matches {
			*k = publishLeader{}
			return what + ": conflict"
		}
		c.versions++
		c.ds = pointer{c.versions, t.target}
		if t.operation == 3 {
			c.ds = pointer{}
		}
		t.operation, t.version, t.target = 0, 0, 0
	case t.attempts != 0:
		a := t.attempts & -t.attempts
		c.attempts, t.attempts = c.attempts&^a, t.attempts&^a
		what = fmt.Sprintf("deletes storage %04b", a)
	}
	p.finish(k)
	return what
}

func (p *publishScenario) finish(k *publishLeader) {
	if t := k.todo; !t.writeStatus && t.operation == 0 && t.attempts == 0 && !t.removeFinalizer {
		*k = publishLeader{}
	}
}
