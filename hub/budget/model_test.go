package budget

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// The protocol of grants at small size: two members with agents that do as
// agents do, a hub that goes by a Book, one that may have been deposed with a write
// in its hand, and what is carried between them late, twice or not at all. All
// that can happen, in any order, within some ticks. After every step, the imports
// that run must be within the budget of the fleet.

const (
	tick   = 1000 * time.Second // against which margins are small
	grants = 1                  // a grant holds for so many ticks
	lasts  = 1                  // an attempt lasts so many ticks at most
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// faults are bugs that are planted; the exploration has to find each of them.
type faults struct {
	fromReading     bool // the agent counts from when it reads a grant
	oldNonce        bool // the agent takes up what another process asked for
	goesOn          bool // the agent starts on after its grant has ended
	largest         bool // the agent keeps a larger grant when a smaller one comes
	forgetTimeout   bool // the hub frees what was granted when the grant ends
	freeOnSending   bool // the hub takes a grant for acknowledged when it is written
	ignoreSlots     bool // the hub counts grants alone
	ignoreUnlimited bool // the hub takes a member for limited before it says so
	forgetStored    bool // who is elected knows reports alone
	forgetPossible  bool // who is elected knows of each member's grants the newest alone
	noFence         bool // who is elected does not see to it that late writes fail
	unguarded       bool // writes are not guarded
	safeUncounted   bool // safe shares are not in the sum
	oldReport       bool // a late report counts like a new one
	forgetDeparted  bool // who is elected does not know what departed clusters hold
	oneCluster      bool // what is stored for another cluster counts as the member's own
	missingIsNone   bool // that there is no report says that nothing runs
}

type planned struct {
	limited bool
	safe    int
}

// reported is a report as it was written.
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
	possible, left int // left in ticks
}

// agent of a member: what its ledger has, what its process has, what it has written.
type agent struct {
	cluster int
	boot, n int
	sent    [2]int // by its own clock, of requests n and n-1
	seq     int    // of its reports
	plan    planned
	ack     int // sequence of the newest grant
	gives   int // slots of it
	until   int // by its own clock
	starts  []int
	written [2]reported // the newest report, and the one before it
}

type hub struct {
	book   *Book
	seen   [2]reported
	fenced [2]bool
	read   [2]bool // what the members had to say then
	rvs    [2]int  // of the grants that it knows
	hand   [2]*stored
}

type world struct {
	now                int
	agents             [2]agent
	flights            [2]stored // grants that were read on the hub, to be written in the member
	grants             [2]stored
	hub                hub
	late               [2]*stored // what a deposed one is about to write
	reboots, failovers int

	// gone: the second is no member any more. Its agent goes on.
	gone bool
	// other is the agent of the cluster that the second was before; nil where it is the
	// same yet.
	other *agent
	// departed is what the hub has stored of such.
	departed string
}

// scenario is where an exploration begins, and how far it goes.
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
	runs              int  // at the first member, at the start, under grants that are over
	forgets           bool // when another is elected, the report of the first is not there
	long              bool // takes a minute
}

type explorer struct {
	scenario
	faults
	seen map[string]struct{}
}

func (x *explorer) start() world {
	var w world
	w.hub.book = NewBook()
	w.hub.fenced = [2]bool{true, true}
	for i := range w.agents {
		a := &w.agents[i]
		a.boot, a.seq = 1, 1
		a.plan = planned{limited: !x.unlimited[i], safe: x.safe[i]}
		for range x.runs * (1 - i) {
			a.starts = append(a.starts, x.local(&w, i))
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
	c.hub.book = w.hub.book.clone()
	return c
}

func (b *Book) clone() *Book {
	c := NewBook()
	c.restored, c.planned, c.attempts = b.restored, b.planned, b.attempts
	for from, to := range map[*map[string]*account]map[string]*account{&b.accounts: c.accounts, &b.departed: c.departed} {
		for name, a := range *from {
			n := *a
			n.given = slices.Clone(a.given)
			to[name] = &n
		}
	}
	return c
}

func (x *explorer) local(w *world, i int) int { return w.now + 7*i }

var members = [2]string{"a", "b"}

func (x *explorer) time(w *world) time.Time { return epoch.Add(time.Duration(w.now) * tick) }

// facts as the hub has them of a member.
func (x *explorer) facts(w *world, i int) Facts {
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
		f := Facts{Planned: &bounds, Desired: bounds, Weight: 1, Unread: true}
		if x.missingIsNone {
			f.Planned = nil
		}
		return f
	}
	inForce := bounds
	inForce.Limited = r.plan.limited
	f := Facts{
		Cluster: x.cluster(r.cluster), Report: int64(r.seq), Boot: strconv.Itoa(r.boot), Slots: int32(r.slots), InForce: &inForce, Planned: &bounds, Desired: bounds,
		Acknowledged: r.plan.limited, SameSources: true, Grantable: w.hub.fenced[0] && w.hub.fenced[1], Weight: 1, Learning: !w.hub.fenced[0] || !w.hub.fenced[1],
		Unread:    !w.hub.read[i],
		Transfers: &v1alpha1.ReportedTransfers{Limited: r.plan.limited, Safe: reportedSafe, Wanted: int32(x.wanted[i]), Grant: int64(r.ack), Slots: int32(r.gives)},
	}
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
		f.Transfers.Limited, f.Acknowledged = true, true
	}
	if a := w.hub.book.accounts[members[i]]; a != nil {
		if x.freeOnSending {
			f.Transfers.Grant = max(f.Transfers.Grant, a.last.Sequence)
		}
		if x.oldReport && int64(r.seq) <= a.facts.Report {
			f.Report = a.facts.Report + 1
		}
	}
	return f
}

// cluster names a cluster of a member.
func (x *explorer) cluster(c int) string {
	if x.oneCluster {
		c = 0
	}
	return "cluster " + strconv.Itoa(c)
}

func nonce(boot, n int) string { return strconv.Itoa(boot) + "/" + strconv.Itoa(n) }

// steps calls do with each world that may follow, and what happened.
func (x *explorer) steps(w *world, do func(what string, next world)) {
	if w.now < x.ticks {
		n := w.clone()
		n.now++
		for i := range n.agents {
			// Attempts time out while an agent runs.
			n.agents[i].starts = slices.DeleteFunc(n.agents[i].starts, func(start int) bool { return x.local(&n, i) > start+lasts })
		}
		if n.other != nil {
			n.other.starts = slices.DeleteFunc(n.other.starts, func(start int) bool { return x.local(&n, 1) > start+lasts })
		}
		x.plan(&n)
		do("time passes", n)
	}
	for i := range w.agents {
		x.agentSteps(w, i, do)
		x.carry(w, i, do)
		x.hubWrites(w, i, do)
	}
	if w.failovers < x.failover {
		n := w.clone()
		n.failovers++
		n.late = n.hub.hand
		n.hub.hand = [2]*stored{}
		if x.forgets {
			n.hub.seen[0] = reported{}
		}
		x.elect(&n)
		do("another is elected", n)
	}
	x.departs(w, do)
}

// plan has the hub look at everything, and keep in its hand what it is to write.
// It does so whenever anything has changed for it: that it comes to it later is as if
// that had come later. Where nobody else is elected, a write that comes late is as a
// grant that is carried late.
func (x *explorer) plan(n *world) {
	if n.hub.hand[0] != nil || n.hub.hand[1] != nil {
		return // once it is empty
	}
	for i := range members {
		if i == 0 || !n.gone {
			n.hub.book.See(members[i], x.facts(n, i), x.time(n))
		}
	}
	p := n.hub.book.Plan(Rules{Total: int64(x.total), Duration: grants * tick}, x.time(n))
	for _, g := range p.Grants {
		i := slices.Index(members[:], g.Member)
		s := &stored{cluster: n.hub.seen[i].cluster, rv: n.hub.rvs[i], seq: int(g.Sequence), slots: int(g.Slots), possible: int(g.Possible.Slots), left: int((g.Left + tick - 1) / tick)}
		if _, err := fmt.Sscanf(g.Nonce, "%d/%d", &s.boot, &s.n); err != nil {
			s.boot, s.n = 0, 0
		}
		n.hub.hand[i] = s
		if x.failover == 0 {
			n.hub.hand[i] = nil
			x.write(n, i, s)
			n.hub.rvs[i] = n.grants[i].rv
		}
	}
}

func (x *explorer) write(n *world, i int, g *stored) bool {
	if g.rv != n.grants[i].rv && !x.unguarded {
		return false
	}
	rv := n.grants[i].rv + 1
	n.flights[i], n.grants[i] = n.grants[i], *g
	n.grants[i].rv = rv
	return true
}

// hubWrites writes what is in a hand, of the elected one or of a deposed one, and
// fences.
func (x *explorer) hubWrites(w *world, i int, do func(string, world)) {
	if g := w.hub.hand[i]; g != nil {
		n := w.clone()
		n.hub.hand[i] = nil
		if x.write(&n, i, g) {
			n.hub.rvs[i] = n.grants[i].rv
			x.plan(&n)
			do("writes for "+members[i], n)
		} else {
			x.elect(&n)
			do("is refused, and learns anew", n)
		}
	}
	if g := w.late[i]; g != nil {
		n := w.clone()
		n.late[i] = nil
		x.write(&n, i, g)
		do("a deposed one writes for "+members[i], n)
	}
	if !w.hub.fenced[i] && w.grants[i].cluster == w.hub.seen[i].cluster {
		n := w.clone()
		if n.grants[i].rv != n.hub.rvs[i] {
			x.elect(&n)
			do("finds another's write, and learns anew", n)
			return
		}
		n.hub.fenced[i] = true
		n.grants[i].rv++
		n.hub.rvs[i] = n.grants[i].rv
		x.plan(&n)
		do("fences "+members[i], n)
	}
}

// elect begins a book with what is stored.
func (x *explorer) elect(w *world) {
	w.hub.book = NewBook()
	w.hub.hand, w.hub.read = [2]*stored{}, [2]bool{}
	for i, g := range w.grants {
		w.hub.rvs[i] = g.rv
		w.hub.fenced[i] = x.noFence || w.gone && i == 1
		if g.seq == 0 || x.forgetStored {
			continue
		}
		s := Stored{Cluster: x.cluster(g.cluster), Grant: Grant{Sequence: int64(g.seq), Share: Share{Slots: int32(g.slots)}, Nonce: nonce(g.boot, g.n), Duration: grants * tick}}
		if !x.forgetPossible {
			s.Possible, s.Left = Share{Slots: int32(g.possible)}, time.Duration(g.left)*tick
		}
		w.hub.book.Learn(members[i], s, x.time(w))
	}
	x.recall(w)
}

// key tells worlds apart that can go on differently.
func (w *world) key() string {
	b := make([]byte, 0, 512)
	num := func(ns ...int) {
		for _, n := range ns {
			b = strconv.AppendInt(b, int64(n), 36)
			b = append(b, ' ')
		}
	}
	at := func(t time.Time) {
		if t.IsZero() {
			b = append(b, '-')
			return
		}
		num(int(t.Sub(epoch) / time.Second))
	}
	rep := func(r reported) { num(r.cluster, r.seq, r.boot, r.n, r.slots, r.ack, r.gives, btoi(r.plan.limited)) }
	sto := func(s *stored) {
		if s == nil {
			b = append(b, '-')
			return
		}
		num(s.cluster, s.rv, s.seq, s.slots, s.boot, s.n, s.possible, s.left)
	}
	account := func(acc *account) {
		num(int(acc.facts.Report), int(acc.facts.Slots), int(acc.last.Sequence), int(acc.safe), int(acc.high), btoi(acc.pending != nil), int(acc.used/1_000_000), int(acc.sequence), btoi(acc.waiting), btoi(acc.missing))
		at(acc.received)
		at(acc.asked)
		at(acc.horizon)
		at(acc.turn.until)
		b = append(b, acc.nonce...)
		for _, g := range acc.given {
			num(int(g.Sequence), int(g.Slots))
			at(g.ends)
			b = append(b, g.Nonce...)
		}
	}
	num(w.now, w.reboots, w.failovers, btoi(w.gone))
	b = append(b, w.departed...)
	agent := func(a *agent) {
		num(a.cluster, a.boot, a.n, a.sent[0], a.sent[1], a.seq, a.ack, a.gives, a.until, btoi(a.plan.limited))
		num(a.starts...)
	}
	if w.other != nil {
		agent(w.other)
	}
	at(w.hub.book.planned)
	for i := range w.agents {
		a := &w.agents[i]
		agent(a)
		b = append(b, '|')
		rep(a.written[0])
		rep(a.written[1])
		rep(w.hub.seen[i])
		sto(&w.flights[i])
		sto(&w.grants[i])
		sto(w.hub.hand[i])
		sto(w.late[i])
		num(btoi(w.hub.fenced[i]), btoi(w.hub.read[i]), w.hub.rvs[i])
		if acc := w.hub.book.accounts[members[i]]; acc != nil {
			account(acc)
		}
	}
	for _, name := range sortedNames(w.hub.book.departed) {
		b = append(b, name...)
		account(w.hub.book.departed[name])
	}
	return string(b)
}

func btoi(v bool) int {
	if v {
		return 1
	}
	return 0
}
