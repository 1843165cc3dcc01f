package budget

import (
	"fmt"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// explainAccount returns reason and message of a member's share.
func (p *allocator) explainAccount(e *allocationEntry, a MemberAccount, reserved int64) (reason, message string) {
	f := &e.account.facts
	switch {
	case f.Quarantined:
		return v1alpha1.TransfersQuarantined, "the member is in quarantine: it gets no grant, and what it may be running is not counted"
	case e.account.departed:
		return v1alpha1.TransfersReserved, fmt.Sprintf("the cluster is no longer a member; the %d transfers that it may be running stay reserved until they have ended", a.Held)
	case f.ReportSequence == 0 && f.PlannedPolicy == nil:
		return v1alpha1.TransfersUnknown, "the member has never reported and never had a policy; it counts as 0"
	case f.ReportSequence == 0:
		return v1alpha1.TransfersUnknown, fmt.Sprintf("the member has a plan but no report; %d transfers stay reserved", a.Held)
	case !f.isLimited():
		return v1alpha1.TransfersNotLimited, explainUnlimited(f, a)
	case f.Silent && a.Held > e.account.currentSafe():
		return v1alpha1.TransfersReserved, fmt.Sprintf("the member is silent; the %d transfers that it may be running stay reserved, and its safe share, %d, once they must have ended", a.Held, e.account.currentSafe())
	case f.Silent:
		return v1alpha1.TransfersSafeShare, fmt.Sprintf("the member is silent; its grant has ended, and its safe share, %d, stays reserved", a.Held)
	case a.Wanted == 0:
		return v1alpha1.TransfersIdle, "the member has nothing to import"
	case p.raisesBlocked && a.Granted < a.Wanted:
		return v1alpha1.TransfersLearning, "the hub has just started; no grant is raised before it has read the reports of all members that it reaches"
	case a.Granted >= a.Wanted:
		return v1alpha1.TransfersGranted, "the member has all transfers that it wants"
	case p.rules.Total == 0 && !p.rules.RisesAt.IsZero():
		return v1alpha1.TransfersWaiting, fmt.Sprintf("fleetConcurrency is 0 outside its windows; the next one opens at %s", p.rules.RisesAt.UTC().Format(time.RFC3339))
	case p.heldTotal > p.rules.Total:
		return v1alpha1.TransfersOverBudget, fmt.Sprintf("more transfers are held than fleetConcurrency, %d; no grant is raised until they fit", p.rules.Total)
	case p.heldTotal < p.rules.Total && !f.SourcesCurrent:
		return v1alpha1.TransfersWaiting, "the source groups have changed, and the member has not acknowledged them yet"
	case p.heldTotal < p.rules.Total && len(p.rules.Groups) > 0:
		return v1alpha1.TransfersWaiting, fmt.Sprintf("the member wants %d transfers and has %d; the source groups that it wants more from are full", a.Wanted, a.Granted)
	default:
		// No sums: each change of them would be a write for every member that waits.
		text := fmt.Sprintf("the member wants %d transfers and has %d; other members hold the rest of fleetConcurrency, %d", a.Wanted, a.Granted, p.rules.Total)
		if reserved > 0 {
			text += ", some of them silent"
		}
		if p.excessCounts {
			text += "; some report more than they were granted (see their condition TransfersAccounted)"
		}
		return v1alpha1.TransfersWaiting, text
	}
}

func explainUnlimited(f *MemberFacts, a MemberAccount) string {
	switch {
	case f.Transfers == nil:
		return fmt.Sprintf("the agent does not support the fleet-wide budget; its whole concurrency, %d, counts: upgrade the agent", a.Held)
	case !f.PlanAcknowledged:
		return fmt.Sprintf("the member has not acknowledged the plan that limits it; its whole concurrency, %d, counts until then", a.Held)
	default:
		return fmt.Sprintf("grants do not limit the member; its whole concurrency, %d, counts", a.Held)
	}
}

// describeAccounts fills in the accounts of the allocation and RecheckAt.
func (p *allocator) describeAccounts() {
	reserved := int64(0)
	for i := range p.entries {
		if e := &p.entries[i]; e.account.facts.Silent || e.account.departed {
			reserved += int64(e.held.Slots)
		}
	}
	for i := range p.entries {
		p.excessCounts = p.excessCounts || p.entries[i].excess > 0 && p.now.Before(p.accountant.excessEnd(p.entries[i].account.member))
	}
	for i := range p.entries {
		e := &p.entries[i]
		a := MemberAccount{
			Member: e.name, Excess: e.excess, Held: e.held.Slots, Sources: e.held.Sources, HeldUntil: e.until, Departed: e.account.departed, Silent: e.account.facts.Silent,
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

// grantedSlots returns the slots of the newest grant while it is valid.
func (a *account) grantedSlots(now time.Time) int32 {
	for _, g := range a.grants {
		if g.Sequence == a.lastGrant.Sequence && now.Before(g.expiresAt) {
			return g.Slots
		}
	}
	return 0
}

// scheduleRecheck finds the next time at which an account changes by itself.
func (p *allocator) scheduleRecheck(e *allocationEntry) {
	lifetime := e.account.attemptLifetime()
	times := []time.Time{e.account.reportedAt.Add(lifetime), e.account.requestedAt.Add(p.rules.Duration), p.accountant.excess[e.account.member].endsAt, p.accountant.restoredUntil}
	if at := e.account.unknownEndedAt; !at.IsZero() {
		times = append(times, at.Add(lifetime))
	}
	for _, ended := range e.account.ended {
		times = append(times, ended.endedAt.Add(lifetime))
	}
	for _, g := range e.account.grants {
		times = append(times, g.expiresAt, g.expiresAt.Add(lifetime))
	}
	for _, t := range times {
		if t.After(p.now) && (p.result.RecheckAt.IsZero() || t.Before(p.result.RecheckAt)) {
			p.result.RecheckAt = t
		}
	}
}
