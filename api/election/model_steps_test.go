package election

import (
	"fmt"
	"time"

	"github.com/pelotech/ot-fleet/api/apitest/modelcheck"
)

// visitor collects the steps of one state.
type visitor struct {
	m     electionModel
	from  *world
	visit func(modelcheck.Step[world])
}

func (v visitor) step(fault bool, change func(*world) (violation string), format string, args ...any) {
	next := *v.from
	violation := change(&next)
	if violation == "" && next.processes[0].mayWrite() && next.processes[1].mayWrite() {
		violation = "two processes may write"
	}
	v.visit(modelcheck.Step[world]{Next: next, Violation: violation, Fault: fault, Describe: func() string { return fmt.Sprintf(format, args...) }})
}

func (m electionModel) ForEachStep(w *world, visit func(modelcheck.Step[world])) {
	v := visitor{m, w, visit}
	v.step(false, func(w *world) string { w.passTime(); return "" }, "a tick passes")
	for i := range w.processes {
		p := &w.processes[i]
		if p.mode != dead {
			v.addOwnSteps(i, p)
		}
		v.addServerSteps(i, p)
	}
}

func (w *world) passTime() {
	older := func(age *uint8) {
		if *age != none && *age < oldAge {
			*age++
		}
	}
	older(&w.stored)
	for i := range w.processes {
		p := &w.processes[i]
		for _, age := range []*uint8{&p.renewed, &p.unanswered, &p.seen, &p.requested, &p.work, &p.workSent, &p.leaseAge} {
			older(age)
		}
	}
}

// storeLease changes the Lease: what anybody knows of it is no longer current.
func (w *world) storeLease(holder uint8) {
	w.holder, w.stored = holder, 0
	for i := range w.processes {
		p := &w.processes[i]
		p.seenCurrent, p.answerCurrent, p.leaseKnown = false, false, false
		p.hasEvent = p.mode == waits
	}
}

// sendLease sends a write to the Lease. One that the sender no longer waits for is then
// never executed.
func (p *process) sendLease(what uint8, known bool) {
	p.lease, p.leaseAge, p.leaseAwaited, p.leaseDone, p.leaseKnown = what, 0, true, false, known
}

// addOwnSteps adds what a process does.
func (v visitor) addOwnSteps(i int, p *process) {
	own := func(fault bool, what string, change func(w *world, p *process) string) {
		v.step(fault, func(w *world) string { return change(w, &w.processes[i]) }, "%d %s", i, what)
	}
	if i == 0 {
		own(true, "is killed", func(_ *world, p *process) string { p.end(); return "" })
		v.addWorkSteps(p, own)
	}
	switch p.mode {
	case candidate:
		own(false, "reads the Lease", func(_ *world, p *process) string { p.mode, p.requested = reads, 0; return "" })
	case answered:
		own(false, "receives the Lease", v.m.receiveLease(i))
	case waits:
		v.addWaitingSteps(p, own)
	case leads:
		if !p.leaseAwaited {
			own(false, "renews the Lease", func(w *world, p *process) string { p.sendLease(renewal, w.holder == uint8(i)); return "" })
		}
		if i != 0 {
			if p.superseded {
				own(false, "ends and starts again", func(_ *world, p *process) string { p.end(); p.mode = candidate; return "" })
			}
			break
		}
		own(true, "decides to end", func(_ *world, p *process) string {
			if !v.m.has(writesAfterRelease) {
				a := p.authority()
				a.close()
				p.closed = a.closed
			}
			p.mode = closing
			return ""
		})
	case closing:
		own(false, "ends without a release", func(_ *world, p *process) string { p.end(); return "" })
		if v.m.mayRelease(p) && !p.leaseAwaited && (v.from.holder == uint8(i) || v.m.has(releasesLeaseOfOther)) {
			own(false, "releases the Lease", func(_ *world, p *process) string { p.sendLease(release, true); return "" })
		}
	}
	if p.leaseAwaited {
		own(true, "gives up its write to the Lease", func(_ *world, p *process) string {
			p.leaseAwaited = false
			if p.leaseDone {
				p.lease, p.leaseDone = noWrite, false
			}
			p.returnToCandidate()
			return ""
		})
	}
}

// end ends the process. What it sent may still be executed.
func (p *process) end() {
	next := newProcess()
	next.mode, next.work = dead, p.work
	next.lease, next.leaseDone, next.leaseKnown = p.lease, p.leaseDone, p.leaseKnown
	*p = next
}

func (m electionModel) mayRelease(p *process) bool {
	a := p.authority()
	if m.has(writesAfterRelease) {
		a.closed = true
	}
	if m.has(releasesBeforeWriteEnded) {
		a.inFlight = 0
	}
	if m.has(releasesAfterUnansweredWrite) {
		a.unanswered = time.Time{}
	}
	return a.mayRelease(modelNow)
}

// returnToCandidate has a process try again that does not lead.
func (p *process) returnToCandidate() {
	if p.mode != leads && p.mode != closing {
		p.mode = candidate
	}
}

// receiveLease is how a process goes on with the answer to a read.
func (m electionModel) receiveLease(i int) func(*world, *process) string {
	return func(w *world, p *process) string {
		received := uint8(0)
		if m.has(countsFromRequest) {
			received = p.requested
		}
		remaining := p.observe(p.sameAsSeen, p.answerHolder, received)
		if m.has(trustsTimestamps) && p.answerHolder != 2 {
			const skew = 1
			remaining = max(0, leaseTicks-time.Duration(w.stored)-skew)
		}
		p.requested, p.seenCurrent = none, p.answerCurrent
		switch {
		case p.answerHolder == uint8(i), remaining == 0:
			p.mode = candidate
			p.sendLease(renewal, p.answerCurrent)
		default:
			// The watch begins at the version that was read: a later one is an event.
			p.mode, p.hasEvent = waits, !p.answerCurrent
		}
		p.sameAsSeen, p.answerCurrent, p.answerHolder = false, false, 0
		return ""
	}
}

func (v visitor) addWaitingSteps(p *process, own func(bool, string, func(*world, *process) string)) {
	take := func(p *process) {
		p.mode = candidate
		if v.m.has(takesWithoutLiveRead) {
			p.sendLease(renewal, true)
		}
	}
	if p.hasEvent {
		own(false, "receives an event", func(w *world, p *process) string {
			p.hasEvent, p.seenCurrent = false, true
			if p.observe(false, w.holder, 0) == 0 {
				take(p)
			}
			return ""
		})
		own(true, "loses an event", func(_ *world, p *process) string { p.hasEvent = false; return "" })
	}
	if !v.m.has(waitsForEventsOnly) && p.seen > 0 { // a renewal is overdue, or the Lease expires
		own(false, "is woken by its timer", func(_ *world, p *process) string {
			if p.seen >= leaseTicks {
				take(p)
			}
			p.mode = candidate
			return ""
		})
	}
}

// addWorkSteps adds what a process does about writes under the Lease.
func (v visitor) addWorkSteps(p *process, own func(bool, string, func(*world, *process) string)) {
	a := p.authority()
	mayBegin := p.held && a.beginWrite(modelNow) == nil && (p.mode == leads || v.m.has(writesAfterRelease) && p.mode == closing)
	if mayBegin && p.work == none && !p.workAwaited {
		own(false, "begins a write", func(_ *world, p *process) string {
			p.work, p.workSent, p.workAwaited = 0, 0, true
			return ""
		})
	}
	if !p.workAwaited {
		return
	}
	end := func(known bool) func(*world, *process) string {
		return func(_ *world, p *process) string {
			a := p.authority()
			a.endWrite(at(p.workSent), known)
			p.workAwaited, p.workSent = false, none
			if !a.unanswered.IsZero() {
				p.unanswered = min(oldAge, uint8(modelNow.Sub(a.unanswered)/tick))
			}
			return ""
		}
	}
	if p.work == none {
		own(false, "receives the answer to its write", end(true))
	}
	own(true, "gives up its write", end(false))
}

// addServerSteps adds what the API server does with the requests of a process.
func (v visitor) addServerSteps(i int, p *process) {
	server := func(fault bool, what string, change func(w *world, p *process) string) {
		v.step(fault, func(w *world) string { return change(w, &w.processes[i]) }, "the API server %s of %d", what, i)
	}
	if p.mode == reads {
		server(false, "answers the read", func(w *world, p *process) string {
			p.mode, p.sameAsSeen, p.answerCurrent, p.answerHolder = answered, p.seenCurrent, true, w.holder
			return ""
		})
	}
	if p.work != none {
		server(false, "executes the write", func(w *world, p *process) string {
			sent := p.work
			p.work = none
			other := &w.processes[1-i]
			// After an expiry a delayed write is what remains, see Lock. A release must not make
			// it likelier.
			if other.mayWrite() && w.released && sent < leaseTicks {
				return "a write is executed after the release of its Lease"
			}
			return ""
		})
		if !p.workAwaited {
			server(false, "loses the write", func(_ *world, p *process) string { p.work = none; return "" })
		}
	}
	v.addLeaseSteps(i, p, server)
}

func (v visitor) addLeaseSteps(i int, p *process, server func(bool, string, func(*world, *process) string)) {
	switch {
	case p.lease == noWrite:
	case !p.leaseDone && (p.leaseKnown || v.m.has(takesWithoutCAS)):
		server(false, "stores the Lease", func(w *world, p *process) string {
			violation := ""
			if p.lease == release {
				if w.processes[1-i].mayWrite() {
					violation = "the Lease of another process is released"
				}
				w.storeLease(2)
			} else {
				w.released = w.holder == 2 || w.released && w.holder == uint8(i)
				w.storeLease(uint8(i))
			}
			p.leaseDone = p.leaseAwaited
			if !p.leaseAwaited {
				p.lease = noWrite
			}
			return violation
		})
	case !p.leaseDone: // a conflict
		server(false, "refuses the Lease", func(w *world, p *process) string {
			p.lease = noWrite
			if !p.leaseAwaited || p.mode == dead {
				return ""
			}
			p.leaseAwaited = false
			a := p.authority()
			if a.recordHolder(w.holder == uint8(i)) {
				p.superseded = true
			}
			p.returnToCandidate()
			return ""
		})
	case p.leaseAwaited && p.mode != dead:
		server(false, "answers the write to the Lease", func(_ *world, p *process) string {
			if p.lease == renewal {
				a, sent := p.authority(), p.leaseAge
				if v.m.has(countsRenewalFromAnswer) {
					sent = 0
				}
				a.recordRenewal(at(sent))
				p.held, p.renewed = a.held, sent
				if p.mode != closing {
					p.mode = leads
				}
			} else if !v.m.has(writesAfterRelease) {
				p.end()
			}
			p.lease, p.leaseAwaited, p.leaseDone = noWrite, false, false
			return ""
		})
	}
}
