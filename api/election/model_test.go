package election

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/apitest/modelcheck"
)

// The model has one Lease, two processes that run authority and observation, and an API
// server that executes requests late, also after their sender has given them up. Every step
// may be delayed for as long as one likes, and so may a process that is paused. Time passes
// in ticks, and is stored as ages, so that the states are finite. Only the first process
// writes under the Lease and ends for good; the second one may lead before it and after it.

const (
	tick       = time.Second
	leaseTicks = 2
	// oldAge stands for all greater ages.
	oldAge = leaseTicks
	none   = 255
)

// plantedBug is a guard that is left out; the exploration has to find each of them.
type plantedBug uint16

const (
	releasesBeforeWriteEnded plantedBug = 1 << iota
	releasesAfterUnansweredWrite
	writesAfterRelease
	releasesLeaseOfOther
	countsFromRequest
	countsRenewalFromAnswer
	trustsTimestamps
	takesWithoutCAS
	takesWithoutLiveRead
	waitsForEventsOnly
)

// What a process does.
const (
	candidate uint8 = iota // and sends no request
	reads                  // the request is on its way
	answered               // the answer is on its way
	waits                  // for an event or a timer
	leads
	closing // has begun no write since it decided to end
	dead
)

// Writes to the Lease.
const (
	noWrite uint8 = iota
	renewal       // also the take-over
	release
)

type process struct {
	mode uint8
	// held, superseded, closed, renewed and unanswered are those of authority, times as ages.
	held, superseded, closed bool
	renewed, unanswered      uint8
	// seen is the observation: its age, and whether the Lease is unchanged since. An event
	// of that change may be on its way.
	seen                  uint8
	seenCurrent, hasEvent bool
	// requested is the age of a read of the Lease. Until its answer is received, sameAsSeen and
	// answerHolder are what it says, and answerCurrent is whether the Lease is unchanged since.
	requested                 uint8
	sameAsSeen, answerCurrent bool
	answerHolder              uint8
	// lease is a write to the Lease, its age, whether its sender still waits, whether it was
	// executed, and whether the Lease is as the sender knew it.
	lease                               uint8
	leaseAge                            uint8
	leaseAwaited, leaseDone, leaseKnown bool
	// work is the age of a write under the Lease that is not executed; awaited: its sender waits.
	work, workSent uint8
	workAwaited    bool
}

type world struct {
	processes [2]process
	// holder of the Lease; 2 for none. stored is the age of its version.
	holder, stored uint8
	// released: the holder took the Lease after it was released.
	released bool
}

type electionModel struct{ bugs plantedBug }

func (m electionModel) has(b plantedBug) bool { return m.bugs&b != 0 }

func (m electionModel) InitialState() world {
	w := world{holder: 2, stored: oldAge}
	for i := range w.processes {
		w.processes[i] = newProcess()
	}
	return w
}

func newProcess() process {
	return process{renewed: oldAge, unanswered: none, seen: oldAge, requested: none, work: none, workSent: none}
}

// Canonical drops what no step depends on.
func (m electionModel) Canonical(w *world) world {
	c := *w
	if !m.has(trustsTimestamps) {
		c.stored = 0
	}
	for i := range c.processes {
		p := &c.processes[i]
		if p.mode != reads && p.mode != answered {
			p.requested, p.sameAsSeen, p.answerCurrent, p.answerHolder = none, false, false, 0
		}
		if p.mode == leads || p.mode == closing {
			p.seen, p.seenCurrent = oldAge, false
		}
		p.hasEvent = p.hasEvent && p.mode == waits
		if !p.held {
			p.renewed = oldAge
		}
		if p.lease != renewal || !p.leaseAwaited {
			p.leaseAge = 0
		}
		if p.unanswered == oldAge {
			p.unanswered = none
		}
	}
	return c
}

var modelNow = time.Unix(1_000_000, 0)

func at(age uint8) time.Time {
	if age == none {
		return time.Time{}
	}
	return modelNow.Add(-time.Duration(age) * tick)
}

func (p *process) authority() authority {
	a := authority{
		duration: leaseTicks * tick, held: p.held, renewed: at(p.renewed), superseded: p.superseded,
		closed: p.closed, unanswered: at(p.unanswered),
	}
	if p.workAwaited {
		a.inFlight = 1
	}
	return a
}

// mayWrite reports whether the process may begin a write as the elected one.
func (p *process) mayWrite() bool {
	a := p.authority()
	return p.mode == leads && p.held && a.beginWrite(modelNow) == nil
}

// observe runs observation on an answer or event, and returns the remaining time.
func (p *process) observe(same bool, holder, age uint8) time.Duration {
	o := observation{uid: "lease", resourceVersion: "seen", since: at(p.seen), holder: "other", duration: leaseTicks * tick}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{UID: "lease", ResourceVersion: "new"}}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = ptr.To("other"), ptr.To(int32(leaseTicks))
	if same {
		lease.ResourceVersion = "seen"
	}
	if holder == 2 {
		lease.Spec.HolderIdentity, o.holder = ptr.To(""), ""
	}
	o.record(lease, at(age))
	p.seen = min(oldAge, uint8(modelNow.Sub(o.since)/tick))
	return o.remaining(modelNow)
}

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

// IsAtRest: one process leads.
func (m electionModel) IsAtRest(w *world) bool {
	return w.processes[0].mayWrite() || w.processes[1].mayWrite()
}

func (m electionModel) Format(w *world) string { return fmt.Sprintf("%+v", *w) }

func (m electionModel) explore(t *testing.T, only string) modelcheck.Result {
	return modelcheck.Explore(t, m, modelcheck.Options[world]{OnlyViolation: only, Expected: []modelcheck.ExpectedState[world]{
		{Name: "a released Lease is taken", IsReached: func(w *world) bool { return w.released && w.holder != 2 && w.processes[1-w.holder].mode == dead }},
		{Name: "a write is in flight when its process decides to end", IsReached: func(w *world) bool { return w.processes[0].mode == closing && w.processes[0].workAwaited }},
		{Name: "a process is superseded", IsReached: func(w *world) bool { return w.processes[0].superseded && w.processes[1].mayWrite() }},
	}})
}

func TestElectionIsSafe(t *testing.T) {
	got := electionModel{}.explore(t, "")
	require.Empty(t, got.Violation, got.FormatTrace())
	require.Empty(t, got.Unreached)
}

func TestPlantedBugs(t *testing.T) {
	const twoWrite, lateWrite = "two processes may write", "a write is executed after the release of its Lease"
	for name, tt := range map[string]struct {
		bug  plantedBug
		want string
	}{
		"a Lease is released before a write has ended":          {releasesBeforeWriteEnded, lateWrite},
		"a Lease is released after an unanswered write":         {releasesAfterUnansweredWrite, lateWrite},
		"writes begin after the release":                        {writesAfterRelease, lateWrite},
		"the Lease of another process is released":              {releasesLeaseOfOther, "the Lease of another process is released"},
		"a candidate counts from its request":                   {countsFromRequest, twoWrite},
		"a renewal counts from its answer":                      {countsRenewalFromAnswer, twoWrite},
		"timestamps in the Lease are trusted":                   {trustsTimestamps, twoWrite},
		"the Lease is written over whatever it is":              {takesWithoutCAS, twoWrite},
		"a candidate takes the Lease without a live read":       {takesWithoutLiveRead | takesWithoutCAS, twoWrite},
		"a candidate waits for events, and one of them is lost": {waitsForEventsOnly, modelcheck.Deadlock},
	} {
		t.Run(name, func(t *testing.T) {
			got := electionModel{tt.bug}.explore(t, tt.want)
			require.Contains(t, got.Violation, tt.want)
			t.Logf("found in %d steps%s", len(got.Trace), got.FormatTrace())
		})
	}
}
