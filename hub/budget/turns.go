package budget

import "time"

// turn is how a member comes to have slots where there are fewer than members that
// have work. Those that have had the least for their weight come first, so that each
// has its turn; what runs is not stopped: a turn ends with the transfers that it began.
type turn struct {
	// used is how long it has had slots, in slots × microseconds for a weight of 1.
	used int64
	// waiting: it has asked when a plan was made last.
	waiting bool
	// since a grant of that sequence it has its turn, until it has begun something or
	// that time is over; the zero time for none.
	sequence int64
	until    time.Time
}

// charge counts what was held since the last plan. Who comes to ask, or comes back,
// begins as one that has had as little as any that asks: to have had nothing for long
// is no claim.
func (b *Book) charge(p *planning) {
	past := time.Duration(0)
	if !b.planned.IsZero() {
		past = max(0, p.now.Sub(b.planned))
	}
	b.planned = p.now
	least, any := int64(0), false
	for i := range p.entries {
		e := &p.entries[i]
		if e.a.gone {
			continue
		}
		beyond := int64(max(0, e.held.Slots-e.a.safeNow()))
		e.a.used += beyond * past.Microseconds() / int64(max(1, e.a.facts.Weight))
		if e.asks && e.a.waiting && (!any || e.a.used < least) {
			least, any = e.a.used, true
		}
	}
	for i := range p.entries {
		e := &p.entries[i]
		if e.asks && !e.a.waiting {
			e.a.used = max(e.a.used, least)
		}
		e.a.waiting = e.asks
	}
}

// takesTurn notes that a member that had nothing is given something.
func (a *account) takesTurn(g Grant, now time.Time) {
	switch {
	case g.Slots == 0:
		a.until = time.Time{}
	case a.last.Slots == 0 || len(a.given) == 0:
		a.sequence, a.until = g.Sequence, now.Add(g.Duration)
	}
}

// begins takes note of a newer report: whoever has begun something has had its turn.
func (a *account) begins() {
	if t := a.facts.Transfers; t != nil && t.Grant >= a.sequence && a.facts.Slots > 0 {
		a.until = time.Time{}
	}
}

// keeps tells that it has its turn, and has not begun anything yet.
func (a *account) keeps(now time.Time) bool { return now.Before(a.until) }
