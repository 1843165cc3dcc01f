package budget

import (
	"time"
)

// tell makes of a plan what people read of it, and when to look again.
func (p *planning) tell() {
	reserved := int64(0)
	for i := range p.entries {
		if e := &p.entries[i]; e.a.facts.Dark || e.a.gone {
			reserved += int64(e.held.Slots)
		}
	}
	for i := range p.entries {
		e := &p.entries[i]
		a := Account{
			Member: e.name, Held: e.held.Slots, Sources: e.held.Sources, Until: e.until, Gone: e.a.gone, Dark: e.a.facts.Dark,
			Granted: e.a.granted(p.now),
		}
		if t := e.a.facts.Transfers; t != nil {
			a.Wanted = t.Wanted
		}
		a.Reason, a.Message = p.explain(e, a, reserved)
		p.plan.Accounts = append(p.plan.Accounts, a)
		p.again(e)
	}
	p.plan.Held = p.sum
}

// granted is what the newest grant gives while it holds.
func (a *account) granted(now time.Time) int32 {
	for _, g := range a.given {
		if g.Sequence == a.last.Sequence && now.Before(g.ends) {
			return g.Slots
		}
	}
	return 0
}

// again looks for the next time at which an account changes by itself.
func (p *planning) again(e *entry) {
	lasting := e.a.lasting()
	times := []time.Time{e.a.received.Add(lasting), e.a.asked.Add(p.rules.Duration)}
	for _, g := range e.a.given {
		times = append(times, g.ends, g.ends.Add(lasting))
	}
	for _, t := range times {
		if t.After(p.now) && (p.plan.Again.IsZero() || t.Before(p.plan.Again)) {
			p.plan.Again = t
		}
	}
}
