package budget

import (
	"fmt"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// explainAccount says why a member has what it has.
func (p *allocator) explainAccount(e *allocationEntry, a MemberAccount, reserved int64) (reason, message string) {
	f := &e.account.facts
	switch {
	case e.account.departed:
		return v1alpha1.TransfersReserved, fmt.Sprintf("no member any more: the %d transfers that it may be running stay reserved until they have ended", a.Held)
	case f.ReportSequence == 0 && f.PlannedPolicy == nil:
		return v1alpha1.TransfersUnknown, "it has never reported, and was never told a policy: nothing is counted for it"
	case f.ReportSequence == 0:
		return v1alpha1.TransfersUnknown, fmt.Sprintf("the hub has no report of it, though it has planned for it: %d stay reserved", a.Held)
	case !f.isLimited():
		return v1alpha1.TransfersNotLimited, explainUnlimited(f, a)
	case f.Silent && a.Held > e.account.currentSafe():
		return v1alpha1.TransfersReserved, fmt.Sprintf("not heard of: the %d transfers that it may be running stay reserved; %d, its safe share, once they must have ended", a.Held, e.account.currentSafe())
	case f.Silent:
		return v1alpha1.TransfersSafeShare, fmt.Sprintf("not heard of: what it was granted has ended, and its safe share, %d, stays reserved", a.Held)
	case a.Wanted == 0:
		return v1alpha1.TransfersIdle, "it has nothing to import"
	case p.raisesBlocked && a.Granted < a.Wanted:
		return v1alpha1.TransfersLearning, "this hub has just begun: nobody gets more before it has read in every member that it reaches what is held"
	case a.Granted >= a.Wanted:
		return v1alpha1.TransfersGranted, "it has all that it wants"
	case p.heldTotal > p.rules.Total:
		return v1alpha1.TransfersOverBudget, fmt.Sprintf("what is held is more than fleetConcurrency, %d: nobody gets more until it fits", p.rules.Total)
	case p.heldTotal < p.rules.Total && !f.SourcesCurrent:
		return v1alpha1.TransfersWaiting, "the groups of sources have changed, and it has not acknowledged them yet"
	case p.heldTotal < p.rules.Total && len(p.rules.Groups) > 0:
		return v1alpha1.TransfersWaiting, fmt.Sprintf("it wants %d and has %d: the groups of sources that it wants more from are full", a.Wanted, a.Granted)
	default:
		// No sums: each change of them would be a write for every member that waits.
		text := fmt.Sprintf("it wants %d and has %d: the rest of fleetConcurrency, %d, is held by others", a.Wanted, a.Granted, p.rules.Total)
		if reserved > 0 {
			text += ", in part by members that are not heard of"
		}
		return v1alpha1.TransfersWaiting, text
	}
}

func explainUnlimited(f *MemberFacts, a MemberAccount) string {
	switch {
	case f.Transfers == nil:
		return fmt.Sprintf("its agent knows no fleet-wide budget: its whole concurrency, %d, is counted; update the agent", a.Held)
	case !f.PlanAcknowledged:
		return fmt.Sprintf("it has not acknowledged the plan that limits it: its whole concurrency, %d, is counted until then", a.Held)
	default:
		return fmt.Sprintf("it does not go by grants: its whole concurrency, %d, is counted", a.Held)
	}
}

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
