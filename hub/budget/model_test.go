package budget

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// The grant protocol at small size: two members with agents, a hub with an Accountant, a
// deposed leader with a pending write, and mail that arrives late, twice or never.
// Everything that can happen within some ticks is explored in every order. Invariant:
// after every step the running imports are within the fleet's budget.

const (
	tick   = 1000 * time.Second // large against the clock margins
	grants = 1                  // ticks that a grant is valid
	lasts  = 1                  // ticks that an attempt lasts at most
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// faults are planted bugs; the exploration has to find each of them.
type faults struct {
	fromReading     bool // the agent counts a grant's duration from reading it
	oldNonce        bool // the agent uses a grant that another process requested
	goesOn          bool // the agent starts imports after its grant has expired
	largest         bool // the agent keeps a larger grant when a smaller one arrives
	forgetTimeout   bool // the hub frees a grant when it expires, not when its attempts have ended
	freeOnSending   bool // the hub counts a grant as acknowledged when it is written
	ignoreSlots     bool // the hub counts only grants
	ignoreUnlimited bool // the hub counts a member as limited before it says so
	forgetStored    bool // a new leader knows only reports
	forgetPossible  bool // a new leader knows only the newest grant of each member
	noFence         bool // a new leader does not make late writes fail
	unguarded       bool // writes are not guarded
	safeUncounted   bool // safe shares are not in the sum
	oldReport       bool // a late report counts like a new one
	forgetDeparted  bool // a new leader does not know what departed clusters hold
	oneCluster      bool // what is stored for another cluster counts as the member's own
	missingIsNone   bool // a missing report counts as nothing running
	plainCap        bool // what the hub does not know never counts
	toleranceAnew   bool // each claim counts for the tolerance anew
	forgetFirstSeen bool // a new leader does not know since when a member claims too much
	forgetWriteOff  bool // a write-off is not stored
	forgetRestore   bool // the hub does not notice that it was restored
	spentBars       bool // a member whose claims are spent is no witness of a restore
	trustLiar       bool // what members report counts for as long as they report it
	outlivesWindow  bool // the hub gives a grant its whole duration, although the window ends before
	missesEdge      bool // the hub goes on with the budget of a window that has ended
	endsByTimeOfDay bool // the agent compares the end of a grant with a clock that can be set
}

type planned struct {
	limited bool
	safe    int
}

// reported is a written report.
type reported struct {
	cluster      int
	seq, boot, n int
	slots, ack   int
	gives        int
	plan         planned
}

// stored is a grant with its resourceVersion on the hub.
type stored struct {
	cluster        int
	rv, seq, slots int
	boot, n        int
	possible, left int // in ticks
	ended          int
	lasts          time.Duration
}

// agent is a member's agent: its ledger, its process, and what it has written.
type agent struct {
	cluster int
	boot, n int
	sent    [2]int // by its own clock, of requests n and n-1
	seq     int    // of its reports
	plan    planned
	ack     int // sequence of the newest grant
	gives   int // slots of the newest grant
	until   int // by its own clock
	starts  []int
	written [2]reported // the newest report and the one before
}

type hub struct {
	accountant    *Accountant
	seen          [2]reported
	fenced        [2]bool
	read          [2]bool // reports at the time of the last allocation
	rvs           [2]int  // of the grants that it knows
	pendingWrites [2]*stored
}

type world struct {
	now                int
	agents             [2]agent
	flights            [2]stored // grants that relays have read on the hub and not written in the member
	grants             [2]stored
	hub                hub
	deposedWrites      [2]*stored // pending writes of a deposed leader
	reboots, failovers int

	// gone: the second member was deleted; its agent keeps running.
	gone bool
	// other is the former agent of the second member; nil before a rebuild.
	other *agent
	// departed is what the hub has stored of departures.
	departed string
	// excess and restored are what it has stored of claims.
	excess   string
	restored time.Duration
	// lies are the false reports of the second member. The first one was seen at liedAt.
	lies, liedAt int
	restores     int
	quarantined  bool // the second member
	writtenOff   bool // what the second member may be running since it is gone
	windowState
}

// scenario is the start of an exploration and its bounds.
type scenario struct {
	total, ticks      int
	concurrency       int
	wanted            [2]int
	unlimited         [2]bool // at the start
	safe              [2]int
	reboots, failover int
	sends, reports    [2]int
	most              int  // states
	leaves, rebuilds  bool // the second member
	runs              int  // the first member runs imports at the start, under expired grants
	forgets           bool // the report of the first member is missing after an election
	long              bool // takes a minute
	tolerance         time.Duration
	lies, restores    int  // of the second member; of the hub, to its beginning
	bothAhead         bool // only once both members have a grant
	spent             bool // the claims of both members have counted at the start
	quarantines       bool // the second member
	writesOff         bool // what the second member runs after it has left
	window
}

type explorer struct {
	scenario
	faults
	seen map[worldKey]struct{}
}

func (x *explorer) initialWorld() world {
	var w world
	w.hub.accountant = NewAccountant()
	w.liedAt, w.excess = -1, x.initialExcess()
	x.loadExcess(&w)
	w.hub.fenced = [2]bool{true, true}
	for i := range w.agents {
		a := &w.agents[i]
		a.boot, a.seq = 1, 1
		a.plan = planned{limited: !x.unlimited[i], safe: x.safe[i]}
		for range x.runs * (1 - i) {
			a.starts = append(a.starts, x.localTime(&w, i))
		}
		a.written[0] = reported{seq: 1, boot: 1, slots: len(a.starts), plan: a.plan}
		w.hub.seen[i] = a.written[0]
	}
	return w
}

func (w *world) clone() world {
	c := *w
	for i := range c.agents {
		c.agents[i].starts = slices.Clone(c.agents[i].starts)
	}
	if w.other != nil {
		other := *w.other
		other.starts = slices.Clone(other.starts)
		c.other = &other
	}
	c.hub.accountant = w.hub.accountant.clone()
	return c
}

func (b *Accountant) clone() *Accountant {
	c := NewAccountant()
	c.hubRestored, c.restoreProven, c.restoredUntil = b.hubRestored, b.restoreProven, b.restoredUntil
	c.allocatedAt, c.maxAttemptTimeout, c.excess = b.allocatedAt, b.maxAttemptTimeout, maps.Clone(b.excess)
	for from, to := range map[*map[string]*account]map[string]*account{&b.accounts: c.accounts, &b.departed: c.departed} {
		for name, a := range *from {
			n := *a
			n.grants, n.ended = slices.Clone(a.grants), slices.Clone(a.ended)
			to[name] = &n
		}
	}
	return c
}

func (x *explorer) localTime(w *world, i int) int { return w.now + 7*i }

var members = [2]string{"a", "b"}

func (x *explorer) timeOf(w *world) time.Time { return epoch.Add(time.Duration(w.now) * tick) }

// factsOf returns the hub's facts of a member.
func (x *explorer) factsOf(w *world, i int) MemberFacts {
	r := w.hub.seen[i]
	timeout := lasts * tick
	if x.forgetTimeout {
		timeout = 0
	}
	safe := int32(x.safe[i])
	reportedSafe := int32(r.plan.safe)
	if x.safeUncounted {
		safe, reportedSafe = 0, 0
	}
	bounds := Bounds{Limited: true, Concurrency: int32(x.concurrency), Safe: safe, AttemptTimeout: timeout}
	if r.seq == 0 {
		f := MemberFacts{PlannedPolicy: &bounds, DesiredPolicy: bounds, Weight: 1, ReportUnread: true}
		if x.missingIsNone {
			f.PlannedPolicy = nil
		}
		return f
	}
	inForce := bounds
	inForce.Limited = r.plan.limited
	f := MemberFacts{
		Cluster: x.clusterName(r.cluster), ReportSequence: int64(r.seq), BootID: strconv.Itoa(r.boot), Slots: int32(r.slots), ReportedPolicy: &inForce, PlannedPolicy: &bounds, DesiredPolicy: bounds,
		PlanAcknowledged: r.plan.limited, SourcesCurrent: true, Grantable: w.hub.fenced[0] && w.hub.fenced[1], Weight: 1, Learning: !w.hub.fenced[0] || !w.hub.fenced[1],
		ReportUnread: !w.hub.read[i],
		Transfers:    &v1alpha1.ReportedTransfers{Limited: r.plan.limited, Safe: reportedSafe, Wanted: int32(x.wanted[i]), Grant: int64(r.ack), Slots: int32(r.gives)},
	}
	if w.restores > 0 && !w.hub.read[i] {
		f.Learning = true
	}
	f.Quarantined = w.quarantined && i == 1
	if w.grants[i].seq > 0 && w.grants[i].cluster != r.cluster {
		f.Grantable, f.Learning = false, true
	}
	if r.n > 0 {
		f.Transfers.Nonce = nonce(r.boot, r.n)
	}
	if x.ignoreSlots {
		f.Slots = 0
	}
	if x.ignoreUnlimited {
		f.Transfers.Limited, f.PlanAcknowledged = true, true
	}
	if a := w.hub.accountant.accounts[members[i]]; a != nil {
		if x.freeOnSending {
			f.Transfers.Grant = max(f.Transfers.Grant, a.lastGrant.Sequence)
		}
		if x.oldReport && int64(r.seq) <= a.facts.ReportSequence {
			f.ReportSequence = a.facts.ReportSequence + 1
		}
	}
	return f
}

// clusterName names a cluster of a member.
func (x *explorer) clusterName(c int) string {
	if x.oneCluster {
		c = 0
	}
	return "cluster " + strconv.Itoa(c)
}

func nonce(boot, n int) string { return strconv.Itoa(boot) + "/" + strconv.Itoa(n) }

// forEachStep calls do with each possible next world and what happened.
func (x *explorer) forEachStep(w *world, do func(what string, next world)) {
	if w.now < x.ticks {
		n := w.clone()
		n.now++
		for i := range n.agents {
			// Attempts time out while an agent runs.
			n.agents[i].starts = slices.DeleteFunc(n.agents[i].starts, func(start int) bool { return x.localTime(&n, i) > start+lasts })
		}
		if n.other != nil {
			n.other.starts = slices.DeleteFunc(n.other.starts, func(start int) bool { return x.localTime(&n, 1) > start+lasts })
		}
		x.runAllocation(&n)
		x.storeExcess(&n) // it is stored anew within seconds
		do("time passes", n)
	}
	for i := range w.agents {
		x.agentSteps(w, i, do)
		x.deliverMail(w, i, do)
		x.hubWrites(w, i, do)
	}
	if w.failovers < x.failover {
		n := w.clone()
		n.failovers++
		n.deposedWrites = n.hub.pendingWrites
		n.hub.pendingWrites = [2]*stored{}
		if x.forgets {
			n.hub.seen[0] = reported{}
		}
		x.electHub(&n)
		do("another is elected", n)
	}
	x.departMember(w, do)
	x.betray(w, do)
	x.windowSteps(w, do)
}

// runAllocation allocates and keeps the decided writes pending. It runs whenever its
// input has changed; a later run is the same as a later change. Without another leader, a
// late write is the same as a grant that is delivered late.
func (x *explorer) runAllocation(n *world) {
	if n.hub.pendingWrites[0] != nil || n.hub.pendingWrites[1] != nil || n.isAway {
		return // once its pending writes are done
	}
	for i := range members {
		if i == 0 || !n.gone {
			n.hub.accountant.Observe(members[i], x.factsOf(n, i), x.timeOf(n))
		}
	}
	x.ignoreWitnesses(n)
	p := n.hub.accountant.Allocate(x.rulesAt(n), x.timeOf(n))
	if _, recorded := n.hub.accountant.excess[members[1]]; recorded && n.lies > 0 && n.liedAt < 0 {
		n.liedAt = n.now
	}
	x.storeExcess(n)
	for _, g := range p.Grants {
		i := slices.Index(members[:], g.Member)
		s := &stored{cluster: n.hub.seen[i].cluster, rv: n.hub.rvs[i], seq: int(g.Sequence), slots: int(g.Slots), possible: int(g.MaxPossible.Slots), ended: int(g.Ended.Slots), left: int((g.PossibleFor + tick - 1) / tick), lasts: g.Duration}
		if _, err := fmt.Sscanf(g.Nonce, "%d/%d", &s.boot, &s.n); err != nil {
			s.boot, s.n = 0, 0
		}
		n.hub.pendingWrites[i] = s
		if x.failover == 0 {
			n.hub.pendingWrites[i] = nil
			x.writeGrant(n, i, s)
			n.hub.rvs[i] = n.grants[i].rv
		}
	}
}

func (x *explorer) writeGrant(n *world, i int, g *stored) bool {
	if g.rv != n.grants[i].rv && !x.unguarded {
		return false
	}
	rv := n.grants[i].rv + 1
	n.flights[i], n.grants[i] = n.grants[i], *g
	n.grants[i].rv = rv
	return true
}

// hubWrites performs pending writes, of the leader or of a deposed one, and fences.
func (x *explorer) hubWrites(w *world, i int, do func(string, world)) {
	if g := w.hub.pendingWrites[i]; g != nil {
		n := w.clone()
		n.hub.pendingWrites[i] = nil
		if x.writeGrant(&n, i, g) {
			n.hub.rvs[i] = n.grants[i].rv
			x.runAllocation(&n)
			do("writes for "+members[i], n)
		} else {
			x.electHub(&n)
			do("is refused, and reads again", n)
		}
	}
	if g := w.deposedWrites[i]; g != nil {
		n := w.clone()
		n.deposedWrites[i] = nil
		x.writeGrant(&n, i, g)
		do("a deposed one writes for "+members[i], n)
	}
	if !w.hub.fenced[i] && w.grants[i].cluster == w.hub.seen[i].cluster {
		n := w.clone()
		if n.grants[i].rv != n.hub.rvs[i] {
			x.electHub(&n)
			do("conflicts with another's write, and reads again", n)
			return
		}
		n.hub.fenced[i] = true
		n.grants[i].rv++
		n.hub.rvs[i] = n.grants[i].rv
		x.runAllocation(&n)
		do("fences "+members[i], n)
	}
}

// electHub starts an accountant with what is stored.
func (x *explorer) electHub(w *world) {
	w.hub.accountant = NewAccountant()
	w.hub.pendingWrites, w.hub.read = [2]*stored{}, [2]bool{}
	for i, g := range w.grants {
		w.hub.rvs[i] = g.rv
		w.hub.fenced[i] = x.noFence || w.gone && i == 1
		if g.seq == 0 || x.forgetStored {
			continue
		}
		s := StoredGrant{Cluster: x.clusterName(g.cluster), Grant: Grant{Sequence: int64(g.seq), Share: Share{Slots: int32(g.slots)}, Nonce: nonce(g.boot, g.n), Duration: g.lasts}}
		if !x.forgetPossible {
			s.MaxPossible, s.PossibleFor = Share{Slots: int32(g.possible)}, time.Duration(g.left)*tick
		}
		s.Ended = Share{Slots: int32(g.ended)}
		w.hub.accountant.LearnGrant(members[i], s, x.timeOf(w))
	}
	x.loadDepartures(w)
	x.loadExcess(w)
}
