package budget

import "time"

// turnState orders members if there are fewer slots than members with work. Members with
// the least usage come first. Running transfers are never stopped: a turn ends with the
// transfers that it began.
type turnState struct {
	// usage is the time that the member has had slots, in slots × microseconds at weight
	// 1.
	usage int64
	// wasRequesting: the member had a request at the last Allocate.
	wasRequesting bool
	// The member has its turn since the grant of turnSequence, until it has begun a
	// transfer or turnUntil has passed; a zero turnUntil is no turn.
	turnSequence int64
	turnUntil    time.Time
}

// chargeUsage adds what was held since the last Allocate. A member that starts to request
// begins with the least usage of all that request: idle time is no claim.
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

// startTurn starts a turn when a member that had nothing gets something.
func (a *account) startTurn(g Grant, now time.Time) {
	switch {
	case g.Slots == 0:
		a.turnUntil = time.Time{}
	case a.lastGrant.Slots == 0 || len(a.grants) == 0:
		a.turnSequence, a.turnUntil = g.Sequence, now.Add(g.Duration)
	}
}

// endTurnOnceUsed ends the turn when a report shows that a transfer has begun.
func (a *account) endTurnOnceUsed() {
	if t := a.facts.Transfers; t != nil && t.Grant >= a.turnSequence && a.facts.Slots > 0 {
		a.turnUntil = time.Time{}
	}
}

// hasTurn reports whether the member has an unused turn.
func (a *account) hasTurn(now time.Time) bool { return now.Before(a.turnUntil) }
