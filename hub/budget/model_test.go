package budget

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
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

// allowed is how many imports an agent may have running when it starts one.
func (x *explorer) allowed(w *world, i int) int {
	return x.allowedTo(w, i, &w.agents[i])
}

func (x *explorer) allowedTo(w *world, i int, a *agent) int {
	if !a.plan.limited {
		return x.concurrency
	}
	gives := 0
	if x.local(w, i) <= a.until || x.goesOn {
		gives = a.gives
	}
	return min(x.concurrency, max(a.plan.safe, gives))
}

func (x *explorer) running(w *world) int {
	n := len(w.agents[0].starts) + len(w.agents[1].starts)
	if w.other != nil {
		n += len(w.other.starts)
	}
	return n
}

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

// departs has the second member deleted, or its cluster rebuilt.
func (x *explorer) departs(w *world, do func(string, world)) {
	if x.leaves && !w.gone && w.hub.fenced[1] { // else it is not let go of yet
		n := w.clone()
		n.gone, n.hub.hand[1], n.hub.fenced[1] = true, nil, true
		x.keep(&n, members[1]) // and then its grant goes
		n.grants[1] = stored{rv: n.grants[1].rv + 1}
		n.hub.rvs[1] = n.grants[1].rv
		n.hub.book.Remove(members[1], x.time(&n))
		x.plan(&n)
		do("b leaves", n)
	}
	if x.rebuilds && w.other == nil {
		n := w.clone()
		before := n.agents[1]
		n.other = &before
		n.agents[1] = agent{cluster: 1, boot: 10, seq: before.seq + 1, plan: before.plan}
		n.agents[1].written[0] = reported{cluster: 1, seq: before.seq + 1, boot: 10, plan: before.plan}
		do("b is rebuilt", n)
	}
	if o := w.other; o != nil {
		if len(o.starts) < min(x.allowedTo(w, 1, o), x.wanted[1]) {
			n := w.clone()
			n.other.starts = append(n.other.starts, x.local(w, 1))
			do("starts where b was", n)
		}
		if g := w.grants[1]; g.seq > o.ack && g.cluster == 0 {
			n := w.clone()
			x.takeUpBy(&n, 1, n.other, g)
			do("a grant arrives where b was", n)
		}
	}
	if r := w.hub.seen[1]; !w.gone && w.grants[1].seq > 0 && r.cluster != w.grants[1].cluster && w.hub.book.Parted(members[1], x.cluster(r.cluster)) {
		n := w.clone()
		if n.grants[1].rv != n.hub.rvs[1] {
			x.elect(&n)
			do("finds another's write to the former b, and learns anew", n)
			return
		}
		x.keep(&n)
		n.grants[1] = stored{cluster: r.cluster, rv: n.grants[1].rv + 1, seq: n.grants[1].seq + 1}
		n.hub.rvs[1] = n.grants[1].rv
		n.hub.hand[1] = nil
		n.hub.book.Wrote(members[1], int64(n.grants[1].seq))
		x.plan(&n)
		do("the grant of b is for the new one", n)
	}
}

// keep stores what has departed, in ticks.
func (x *explorer) keep(n *world, leaving ...string) {
	n.departed = ""
	for _, d := range n.hub.book.Departures(leaving, x.time(n)) {
		n.departed += fmt.Sprintf("%d %d,", d.Slots, (d.Left+tick-1)/tick)
	}
}

// recall takes that in.
func (x *explorer) recall(n *world) {
	for i, text := range strings.Split(n.departed, ",") {
		d := Departure{Member: "departed", Cluster: strconv.Itoa(i)}
		var left int
		if _, err := fmt.Sscanf(text, "%d %d", &d.Slots, &left); err == nil && !x.forgetDeparted {
			d.Left = time.Duration(left) * tick
			n.hub.book.Recall(d, x.time(n))
		}
	}
}

func (x *explorer) agentSteps(w *world, i int, do func(string, world)) {
	a := &w.agents[i]
	if len(a.starts) < min(x.allowed(w, i), x.wanted[i]) {
		n := w.clone()
		n.agents[i].starts = append(n.agents[i].starts, x.local(w, i))
		do("starts at "+members[i], n)
	}
	if len(a.starts) > 0 {
		n := w.clone()
		n.agents[i].starts = n.agents[i].starts[1:]
		do("ends at "+members[i], n)
	}
	if a.n < x.sends[i] && a.seq <= x.reports[i] {
		n := w.clone()
		b := &n.agents[i]
		b.n++
		b.sent = [2]int{x.local(w, i), b.sent[0]}
		x.report(&n, i)
		do("asks "+members[i], n)
	}
	if now := x.says(w, i); now != a.written[0] && a.seq <= x.reports[i] {
		n := w.clone()
		x.report(&n, i)
		do("reports "+members[i], n)
	}
	if w.reboots < x.reboots {
		n := w.clone()
		n.reboots++
		b := &n.agents[i]
		b.boot, b.n, b.sent, b.gives, b.until = b.boot+1, 0, [2]int{}, 0, 0
		do("reboots "+members[i], n)
	}
	if !a.plan.limited {
		n := w.clone()
		n.agents[i].plan.limited = true
		do("is limited "+members[i], n)
	}
}

// says is what a report would say now, under the sequence of the last one.
func (x *explorer) says(w *world, i int) reported {
	a := &w.agents[i]
	gives := 0
	if x.local(w, i) <= a.until {
		gives = a.gives
	}
	return reported{cluster: a.cluster, seq: a.seq, boot: a.boot, n: a.n, slots: len(a.starts), ack: a.ack, gives: gives, plan: a.plan}
}

func (x *explorer) report(w *world, i int) {
	a := &w.agents[i]
	a.seq++
	a.written = [2]reported{x.says(w, i), a.written[0]}
}

// carry moves mail either way.
func (x *explorer) carry(w *world, i int, do func(string, world)) {
	if w.gone && i == 1 {
		return // but what is on its way, which is as if it had come before
	}
	for _, r := range w.agents[i].written {
		if r.seq > w.hub.seen[i].seq || x.oldReport && r.seq > 0 && r.seq < w.hub.seen[i].seq {
			n := w.clone()
			n.hub.seen[i] = r
			n.hub.read[i] = n.hub.read[i] || r == n.agents[i].written[0]
			x.plan(&n)
			do("report arrives of "+members[i], n)
		}
	}
	for _, g := range []stored{w.grants[i], w.flights[i]} {
		if g.seq > w.agents[i].ack && g.cluster == w.agents[i].cluster {
			n := w.clone()
			x.takeUp(&n, i, g)
			do(fmt.Sprintf("grant %d, %d slots, arrives at %s", g.seq, g.slots, members[i]), n)
		}
	}
}

// takeUp is what an agent does with a newer grant.
func (x *explorer) takeUp(w *world, i int, g stored) { x.takeUpBy(w, i, &w.agents[i], g) }

func (x *explorer) takeUpBy(w *world, i int, a *agent, g stored) {
	a.ack = g.seq
	if x.largest && a.gives > g.slots && x.local(w, i) <= a.until {
		return
	}
	a.gives, a.until = 0, 0
	known := g.boot == a.boot && (g.n == a.n || g.n == a.n-1) && g.n > 0
	switch {
	case known && x.fromReading, x.oldNonce && !known:
		a.gives, a.until = g.slots, x.local(w, i)+grants
	case known:
		a.gives, a.until = g.slots, a.sent[a.n-g.n]+grants
	}
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
