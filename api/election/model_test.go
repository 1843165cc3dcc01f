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
