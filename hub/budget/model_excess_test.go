package budget

import (
	"fmt"
	"strings"
	"time"
)

// claimed is how many slots a lie says: more than there are.
const claimed = 9

// betray has the second member lie, or a person or a backup change what the hub knows.
func (x *explorer) betray(w *world, do func(string, world)) {
	if w.lies < x.lies && !w.gone && !w.quarantined {
		n := w.clone()
		n.lies++
		b := &n.agents[1]
		x.writeReport(&n, 1)
		b.written[0].slots = claimed + n.lies%2
		n.hub.seen[1], n.hub.read[1] = b.written[0], true
		if x.toleranceAnew {
			delete(n.hub.accountant.excess, members[1])
		}
		x.runAllocation(&n)
		do("b lies", n)
	}
	if ahead := w.agents[0].ack > 0 && w.agents[1].ack > 0; w.restores < x.restores && (ahead || !x.bothAhead) {
		n := w.clone()
		n.restores++
		first := x.initialWorld()
		n.departed, n.excess, n.restored = "", x.initialExcess(), 0
		for i := range n.grants {
			// No process of the hub outlives a restore, and it takes longer than agents take
			// to report.
			n.flights[i] = stored{}
			x.writeReport(&n, i)
			n.grants[i] = stored{rv: n.grants[i].rv + 1}
			n.hub.seen[i] = first.hub.seen[i]
		}
		x.electHub(&n)
		do("the hub is restored", n)
	}
	if x.writesOff && w.gone && !w.writtenOff {
		n := w.clone()
		n.writtenOff = true
		n.hub.accountant.WriteOff(members[1])
		n.hub.accountant.WriteOff("departed") // as loadDepartures names it
		if !x.forgetWriteOff {
			x.storeDepartures(&n)
		}
		x.runAllocation(&n)
		do("what b may run is written off", n)
	}
	if x.quarantines && !w.quarantined && !w.gone {
		n := w.clone()
		n.quarantined = true
		x.runAllocation(&n)
		do("b is quarantined", n)
	}
}

// storeExcess stores the claims.
func (x *explorer) storeExcess(n *world) {
	all, restored := n.hub.accountant.Excesses(x.timeOf(n))
	n.excess, n.restored = "", restored
	for _, name := range members {
		for _, e := range all {
			if e.Member == name {
				n.excess += excessText(e)
			}
		}
	}
}

func excessText(e Excess) string {
	return fmt.Sprintf("%s %d %t %d %t,", e.Member, e.Remaining/time.Second, e.UnknownGrant, e.WitnessRemaining/time.Second, e.AfterRestore)
}

// initialExcess is what is stored at the start, and in the backup.
func (x *explorer) initialExcess() (text string) {
	for _, name := range members {
		if x.spent {
			text += excessText(Excess{Member: name})
		}
	}
	return text
}

// ignoreWitnesses plants bugs in how a restore is noticed.
func (x *explorer) ignoreWitnesses(n *world) {
	for name, a := range n.hub.accountant.accounts {
		if x.forgetRestore || x.spentBars && n.hub.accountant.isExcessSpent(name, x.timeOf(n)) {
			a.grantAhead = false
		}
	}
}

// loadExcess reads the stored claims.
func (x *explorer) loadExcess(n *world) {
	b := n.hub.accountant
	for _, text := range strings.Split(n.excess, ",") {
		var e Excess
		var seconds, witness int
		if _, err := fmt.Sscanf(text, "%s %d %t %d %t", &e.Member, &seconds, &e.UnknownGrant, &witness, &e.AfterRestore); err == nil && !x.forgetFirstSeen {
			e.Remaining, e.WitnessRemaining = time.Duration(seconds)*time.Second, time.Duration(witness)*time.Second
			b.LearnExcess(e, x.timeOf(n))
		}
	}
	b.LearnRestore(n.restored, x.timeOf(n))
	for _, name := range members {
		switch {
		case x.plainCap:
			b.LearnExcess(Excess{Member: name}, x.timeOf(n))
		case x.trustLiar:
			b.excess[name] = excessRecord{endsAt: distantFuture}
		}
	}
}

// standsStill: the others have to wait for what the liar claims, although its claims have
// counted for the tolerance, or it is in quarantine.
func (x *explorer) standsStill(w *world) bool {
	if w.writtenOff {
		return len(w.hub.accountant.departed) > 0
	}
	a := w.hub.accountant.accounts[members[1]]
	if a == nil || w.hub.pendingWrites[0] != nil || w.hub.pendingWrites[1] != nil {
		return false // the last allocation is older
	}
	held, _ := w.hub.accountant.heldShare(a, nil, x.timeOf(w))
	if w.quarantined {
		return held.Slots > 0
	}
	over := w.liedAt >= 0 && time.Duration(w.now-w.liedAt)*tick > x.tolerance
	return over && int(held.Slots) > x.total
}
