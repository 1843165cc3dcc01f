package budget

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// departMember deletes the second member, or rebuilds its cluster.
func (x *explorer) departMember(w *world, do func(string, world)) {
	if x.leaves && !w.gone && w.hub.fenced[1] { // otherwise it is not removed yet
		n := w.clone()
		n.gone, n.hub.pendingWrites[1], n.hub.fenced[1] = true, nil, true
		x.storeDepartures(&n, members[1]) // then its grant is deleted
		n.grants[1] = stored{rv: n.grants[1].rv + 1}
		n.hub.rvs[1] = n.grants[1].rv
		n.hub.accountant.RemoveMember(members[1], x.timeOf(&n))
		x.runAllocation(&n)
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
		if len(o.starts) < min(x.allowedImportsOf(w, 1, o), x.wanted[1]) {
			n := w.clone()
			n.other.starts = append(n.other.starts, x.localTime(w, 1))
			do("starts where b was", n)
		}
		if g := w.grants[1]; g.seq > o.ack && g.cluster == 0 {
			n := w.clone()
			x.receiveGrantAs(&n, 1, n.other, g)
			do("a grant arrives where b was", n)
		}
	}
	if r := w.hub.seen[1]; !w.gone && w.grants[1].seq > 0 && r.cluster != w.grants[1].cluster && w.hub.accountant.TracksCluster(members[1], x.clusterName(r.cluster)) {
		n := w.clone()
		if n.grants[1].rv != n.hub.rvs[1] {
			x.electHub(&n)
			do("conflicts with another's write to the former b, and reads again", n)
			return
		}
		x.storeDepartures(&n)
		n.grants[1] = stored{cluster: r.cluster, rv: n.grants[1].rv + 1, seq: n.grants[1].seq + 1}
		n.hub.rvs[1] = n.grants[1].rv
		n.hub.pendingWrites[1] = nil
		n.hub.accountant.RecordSequence(members[1], int64(n.grants[1].seq))
		x.runAllocation(&n)
		do("the grant of b is for the new one", n)
	}
}

// storeDepartures stores the departures, in ticks.
func (x *explorer) storeDepartures(n *world, leaving ...string) {
	n.departed = ""
	for _, d := range n.hub.accountant.Departures(leaving, x.timeOf(n)) {
		n.departed += fmt.Sprintf("%d %d,", d.Slots, (d.Remaining+tick-1)/tick)
	}
}

// loadDepartures reads the stored departures.
func (x *explorer) loadDepartures(n *world) {
	for i, text := range strings.Split(n.departed, ",") {
		d := Departure{Member: "departed", Cluster: strconv.Itoa(i)}
		var left int
		if _, err := fmt.Sscanf(text, "%d %d", &d.Slots, &left); err == nil && !x.forgetDeparted {
			d.Remaining = time.Duration(left) * tick
			n.hub.accountant.LearnDeparture(d, x.timeOf(n))
		}
	}
}
