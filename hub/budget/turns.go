package budget

import "time"

// turnState is how a member comes to have slots where there are fewer than members that
// have work. Those that have had the least for their weight come first, so that each
// has its turn; what runs is not stopped: a turn ends with the transfers that it began.
type turnState struct {
	// usage is how long it has had slots, in slots × microseconds for a weight of 1.
	usage int64
	// waiting: it has asked when a plan was made last.
	wasRequesting bool
	// since a grant of that sequence it has its turn, until it has begun something or
	// that time is over; the zero time for none.
	turnSequence int64
	turnUntil    time.Time
}

// chargeUsage counts what was held since the last plan. Who comes to ask, or comes back,
// begins as one that has had as little as any that asks: to have had nothing for long
// is no claim.
func (b *Accountant) chargeUsage(p *allocator) {
	past := time.Duration(0)
	if !b.allocatedAt.IsZero() {
		past = max(0, p.now.Sub(b.allocatedAt))
	}
	b.allocatedAt = p.now
	least, any := int64(0), false
	for i := range p.entries {
		e := &p.entries[i]
		if e.account.departed {
			continue
		}
		beyond := int64(max(0, e.held.Slots-e.account.currentSafe()))
		e.account.usage += beyond * past.Microseconds() / int64(max(1, e.account.facts.Weight))
		if e.hasRequest && e.account.wasRequesting && (!any || e.account.usage < least) {
			least, any = e.account.usage, true
		}
	}
	for i := range p.entries {
		e := &p.entries[i]
		if e.hasRequest && !e.account.wasRequesting {
			e.account.usage = max(e.account.usage, least)
		}
		e.account.wasRequesting = e.hasRequest
	}
}

// startTurn notes that a member that had nothing is given something.
func (a *account) startTurn(g Grant, now time.Time) {
	switch {
	case g.Slots == 0:
		a.turnUntil = time.Time{}
	case a.lastGrant.Slots == 0 || len(a.grants) == 0:
		a.turnSequence, a.turnUntil = g.Sequence, now.Add(g.Duration)
	}
}

// endTurnOnceUsed takes note of a newer report: whoever has begun something has had its turn.
func (a *account) endTurnOnceUsed() {
	if t := a.facts.Transfers; t != nil && t.Grant >= a.turnSequence && a.facts.Slots > 0 {
		a.turnUntil = time.Time{}
	}
}

// hasTurn tells that it has its turn, and has not begun anything yet.
func (a *account) hasTurn(now time.Time) bool { return now.Before(a.turnUntil) }
