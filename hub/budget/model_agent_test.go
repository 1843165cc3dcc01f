package budget

import "fmt"

// allowedImports is how many imports an agent may run when it starts one.
func (x *explorer) allowedImports(w *world, i int) int {
	return x.allowedImportsOf(w, i, &w.agents[i])
}

func (x *explorer) allowedImportsOf(w *world, i int, a *agent) int {
	if !a.plan.limited {
		return x.concurrency
	}
	gives := 0
	if x.grantClock(w, i) <= a.until || x.goesOn {
		gives = a.gives
	}
	return min(x.concurrency, max(a.plan.safe, gives))
}

func (x *explorer) runningImports(w *world) int {
	n := len(w.agents[0].starts)
	if !w.quarantined && !w.writtenOff { // a person has decided not to count it
		n += len(w.agents[1].starts)
	}
	if w.other != nil {
		n += len(w.other.starts)
	}
	return n
}

func (x *explorer) agentSteps(w *world, i int, do func(string, world)) {
	a := &w.agents[i]
	if len(a.starts) < min(x.allowedImports(w, i), x.wanted[i]) {
		n := w.clone()
		n.agents[i].starts = append(n.agents[i].starts, x.localTime(w, i))
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
		b.sent = [2]int{x.localTime(w, i), b.sent[0]}
		x.writeReport(&n, i)
		do("asks "+members[i], n)
	}
	if now := x.makeReport(w, i); now != a.written[0] && a.seq <= x.reports[i] {
		n := w.clone()
		x.writeReport(&n, i)
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

// makeReport returns the current report, under the sequence of the last one.
func (x *explorer) makeReport(w *world, i int) reported {
	a := &w.agents[i]
	gives := 0
	if x.localTime(w, i) <= a.until {
		gives = a.gives
	}
	return reported{cluster: a.cluster, seq: a.seq, boot: a.boot, n: a.n, slots: len(a.starts), ack: a.ack, gives: gives, plan: a.plan}
}

func (x *explorer) writeReport(w *world, i int) {
	a := &w.agents[i]
	a.seq++
	a.written = [2]reported{x.makeReport(w, i), a.written[0]}
}

// deliverMail delivers mail in either direction.
func (x *explorer) deliverMail(w *world, i int, do func(string, world)) {
	if (w.gone || w.quarantined) && i == 1 {
		return // except mail in flight, which counts as delivered before
	}
	for _, r := range w.agents[i].written {
		if r.seq > w.hub.seen[i].seq || x.oldReport && r.seq > 0 && r.seq < w.hub.seen[i].seq {
			n := w.clone()
			n.hub.seen[i] = r
			n.hub.read[i] = n.hub.read[i] || r == n.agents[i].written[0]
			x.runAllocation(&n)
			do("report arrives of "+members[i], n)
		}
	}
	for _, g := range []stored{w.grants[i], w.flights[i]} {
		if g.seq > w.agents[i].ack && g.cluster == w.agents[i].cluster {
			n := w.clone()
			x.receiveGrant(&n, i, g)
			do(fmt.Sprintf("grant %d, %d slots, arrives at %s", g.seq, g.slots, members[i]), n)
		}
	}
}

// receiveGrant models an agent that reads a newer grant.
func (x *explorer) receiveGrant(w *world, i int, g stored) { x.receiveGrantAs(w, i, &w.agents[i], g) }

func (x *explorer) receiveGrantAs(w *world, i int, a *agent, g stored) {
	a.ack = g.seq
	if x.largest && a.gives > g.slots && x.localTime(w, i) <= a.until {
		return
	}
	a.gives, a.until = 0, 0
	known := g.boot == a.boot && (g.n == a.n || g.n == a.n-1) && g.n > 0
	switch {
	case known && x.fromReading, x.oldNonce && !known:
		a.gives, a.until = g.slots, x.localTime(w, i)+int(g.lasts/tick)
	case known:
		a.gives, a.until = g.slots, a.sent[a.n-g.n]+int(g.lasts/tick)
	}
}
