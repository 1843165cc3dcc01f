package budget

import (
	"time"
)

// describeAccounts makes of a plan what people read of it, and when to look again.
func (p *allocator) describeAccounts() {
	reserved := int64(0)
	for i := range p.entries {
		if e := &p.entries[i]; e.account.facts.Silent || e.account.departed {
			reserved += int64(e.held.Slots)
		}
	}
	for i := range p.entries {
		e := &p.entries[i]
		a := MemberAccount{
			Member: e.name, Held: e.held.Slots, Sources: e.held.Sources, HeldUntil: e.until, Departed: e.account.departed, Silent: e.account.facts.Silent,
			Granted: e.account.grantedSlots(p.now),
		}
		if t := e.account.facts.Transfers; t != nil {
			a.Wanted = t.Wanted
		}
		a.Reason, a.Message = p.explainAccount(e, a, reserved)
		p.result.Accounts = append(p.result.Accounts, a)
		p.scheduleRecheck(e)
	}
	p.result.Held = p.heldTotal
}

// grantedSlots is what the newest grant gives while it holds.
func (a *account) grantedSlots(now time.Time) int32 {
	for _, g := range a.grants {
		if g.Sequence == a.lastGrant.Sequence && now.Before(g.expiresAt) {
			return g.Slots
		}
	}
	return 0
}

// scheduleRecheck looks for the next time at which an account changes by itself.
func (p *allocator) scheduleRecheck(e *allocationEntry) {
	lasting := e.account.attemptLifetime()
	times := []time.Time{e.account.reportedAt.Add(lasting), e.account.requestedAt.Add(p.rules.Duration)}
	for _, g := range e.account.grants {
		times = append(times, g.expiresAt, g.expiresAt.Add(lasting))
	}
	for _, t := range times {
		if t.After(p.now) && (p.result.RecheckAt.IsZero() || t.Before(p.result.RecheckAt)) {
			p.result.RecheckAt = t
		}
	}
}
