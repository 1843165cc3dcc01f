package budget

import "time"

// window ends at a tick of the hub's wall clock; at 0 the budget never changes.
type window struct {
	edge, after           int  // the budget after the edge
	goesAway              bool // the hub, once
	setsBack, setsOwnBack bool // the clock of the hub, or of the first member, by a tick, once
}

type windowState struct {
	setBack, ownSetBack int
	isAway, wasAway     bool
}

// totalAt is the budget in force by the hub's wall clock.
func (x *explorer) totalAt(w *world) int {
	if x.edge > 0 && w.now-w.setBack >= x.edge {
		return x.after
	}
	return x.total
}

func (x *explorer) rulesAt(w *world) Rules {
	r := Rules{Total: int64(x.totalAt(w)), Duration: grants * tick, ExcessTolerance: x.tolerance}
	if x.missesEdge {
		r.Total = int64(x.total)
	}
	if left := x.edge - w.now + w.setBack; x.edge > 0 && left > 0 && x.after < x.total && !x.outlivesWindow {
		r.EndsIn = time.Duration(left) * tick
	}
	return r
}

// exceedsBudget: an import has started beyond the budget in force. What runs when a window
// ends runs on.
func (x *explorer) exceedsBudget(before, w *world) bool {
	running := x.runningImports(w)
	return running > x.totalAt(w) && (x.edge == 0 || running > x.runningImports(before))
}

// grantClock is the clock that an agent compares the end of its grant with.
func (x *explorer) grantClock(w *world, i int) int {
	if x.endsByTimeOfDay && i == 0 {
		return x.localTime(w, i) - w.ownSetBack
	}
	return x.localTime(w, i)
}

func (x *explorer) windowSteps(w *world, do func(string, world)) {
	if x.setsBack && w.setBack == 0 {
		n := w.clone()
		n.setBack = 1
		x.runAllocation(&n)
		do("the hub's clock is put back", n)
	}
	if x.setsOwnBack && w.ownSetBack == 0 {
		n := w.clone()
		n.ownSetBack = 1
		do("the clock of a is put back", n)
	}
	if x.goesAway && !w.wasAway {
		n := w.clone()
		n.isAway, n.wasAway = true, true
		do("the hub goes away", n)
	}
	if w.isAway {
		n := w.clone()
		n.isAway = false
		x.electHub(&n)
		x.runAllocation(&n)
		do("the hub is back", n)
	}
}
