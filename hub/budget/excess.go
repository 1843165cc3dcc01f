package budget

import (
	"time"

	"github.com/pelotech/ot-fleet/api/storedtime"
)

// excessForgetDelay is how long the record of a member is kept that has left.
const excessForgetDelay = 24 * time.Hour

// excessRecord is when a member was first seen to claim more than the hub knows.
//
// Invariant: there is one record for each member, whatever clusters and processes it
// claims to be, and what it claims does not move endsAt. Before the member leaves, only
// a person ends the record, by a quarantine, or a proven restore.
type excessRecord struct {
	// endsAt is when the claims stop to count.
	endsAt time.Time
	// witnessUntil is how long the member is a witness of a restore; zero if it has shown
	// no unknown grant. A member whose other claims are spent is still a witness.
	witnessUntil time.Time
	// afterRestore: the unknown grant of the member is explained by a proven restore. The
	// member is no witness again before it has acknowledged a grant that the hub knows;
	// that ends the record.
	afterRestore bool
	// leftSince is when the member left; zero while it is there.
	leftSince time.Time
}

// Excess is a stored excessRecord.
type Excess struct {
	Member string
	// Remaining time that the claims count for; 0 if they no longer do.
	Remaining time.Duration
	// UnknownGrant: the member has shown a grant that the hub does not know. It is a
	// witness of a restore for WitnessRemaining.
	UnknownGrant     bool
	WitnessRemaining time.Duration
	// AfterRestore: a proven restore explains that grant.
	AfterRestore bool
}

// heldShare bounds what a member may be running, in total and by source group. until is
// when the bound falls if nothing is heard of the member; zero for never.
func (b *Accountant) heldShare(a *account, groups []Group, now time.Time) (h Share, until time.Time) {
	h, until, _ = b.assess(a, groups, now)
	return h, until
}

// assess returns the held share, and how many slots the member claims beyond what the hub
// knows, in total or in a source group.
//
// What the hub has planned and granted always counts. What only the member says counts
// until its excess ends.
func (b *Accountant) assess(a *account, groups []Group, now time.Time) (h Share, until time.Time, excess int32) {
	if b.isQuarantined(a.member) {
		return h, until, 0
	}
	known, until := a.knownShare(groups, b.hubRestored, now)
	claimed, claimedUntil := a.claimedShare(groups, now)
	excess = max(0, claimed.Slots-known.Slots)
	for name, n := range claimed.Sources {
		excess = max(excess, n-known.Sources[name])
	}
	ends := b.excessEnd(a.member)
	if excess == 0 || !now.Before(ends) {
		return known, until, excess
	}
	if !claimedUntil.IsZero() {
		ends = earlierOf(ends, claimedUntil)
	}
	if known.Slots == 0 || !until.IsZero() {
		until = storedtime.LaterOf(until, ends)
	}
	return known.Max(claimed), until, excess
}

// excessEnd returns when the claims of a member stop to count. Claims that are not
// recorded yet count, and so do all claims while attempts may run that a restored hub
// does not know.
func (b *Accountant) excessEnd(member string) time.Time {
	record, ok := b.excess[member]
	if !ok {
		return distantFuture
	}
	return storedtime.LaterOf(record.endsAt, b.restoredUntil)
}

var distantFuture = time.Unix(1<<40, 0)

func (b *Accountant) isQuarantined(member string) bool {
	a := b.accounts[member]
	return a != nil && a.facts.Quarantined
}

// isExcessSpent reports whether the claims of a member have counted for the tolerance.
func (b *Accountant) isExcessSpent(member string, now time.Time) bool {
	record, ok := b.excess[member]
	return ok && !now.Before(record.endsAt)
}

// recordExcess records that a member claims more than the hub knows. While all claims
// count after a restore, no record begins: honest members keep their tolerance.
func (b *Accountant) recordExcess(a *account, rules Rules, now time.Time) {
	if b.isQuarantined(a.member) || now.Before(b.restoredUntil) {
		return
	}
	ends := now.Add(b.excessTolerance(a, rules))
	record, ok := b.excess[a.member]
	if !ok {
		record.endsAt = ends
	}
	if a.grantAhead && record.witnessUntil.IsZero() {
		record.witnessUntil = ends
	}
	b.excess[a.member] = record
}

// observeUnknownGrant decides whether the member is a witness of a restore: it shows a
// grant that is newer than all that the hub knows.
func (b *Accountant) observeUnknownGrant(a *account, f *MemberFacts, now time.Time) {
	t, record := f.Transfers, b.excess[a.member]
	ahead := f.MemberGrantSequence > a.lastGrant.Sequence || t != nil && t.Grant > a.lastGrant.Sequence
	switch {
	case !ahead:
		if record.afterRestore && t != nil && t.Grant == a.lastGrant.Sequence {
			delete(b.excess, a.member)
		}
	case now.Before(b.restoredUntil):
		b.excess[a.member] = excessRecord{endsAt: b.restoredUntil, afterRestore: true}
	case record.afterRestore || !record.witnessUntil.IsZero() && !now.Before(record.witnessUntil):
		a.grantInUse = false // its word counts neither for a restore nor against it
	default:
		a.grantAhead = true
	}
}

// forgetExcesses drops the records of members that left long ago.
func (b *Accountant) forgetExcesses(now time.Time) {
	if len(b.excess) == 0 {
		return
	}
	departed := map[string]bool{}
	for _, a := range b.departed {
		departed[a.member] = true
	}
	for member, record := range b.excess {
		switch {
		case departed[member] || b.accounts[member] != nil:
			record.leftSince = time.Time{}
		case record.leftSince.IsZero():
			record.leftSince = now
		case now.Sub(record.leftSince) >= excessForgetDelay:
			delete(b.excess, member)
			continue
		}
		b.excess[member] = record
	}
}

// excessTolerance returns how long the claims of a member count: no longer than an honest
// member may run what the hub does not know. Until its grant has expired, it may begin
// attempts.
func (b *Accountant) excessTolerance(a *account, rules Rules) time.Duration {
	timeout := a.facts.DesiredPolicy.AttemptTimeout
	if timeout == 0 {
		timeout = b.maxAttemptTimeout
	}
	if rules.ExcessTolerance == 0 || rules.ExcessTolerance >= timeout {
		return withClockMargin(rules.Duration) + withEndGrace(timeout)
	}
	return rules.ExcessTolerance
}

// detectRestore decides whether the hub was restored from a backup: members show grants
// that it does not know. One member's word counts only as long as its other claims. That
// of most members whose grants were in use, and at least of two, is believed.
func (b *Accountant) detectRestore(rules Rules, now time.Time) {
	if b.restoreProven || now.Before(b.restoredUntil) {
		b.hubRestored = true
		return
	}
	ahead, witnesses, suspected := 0, 0, false
	for name, a := range b.accounts {
		if a.facts.ReportUnread || a.facts.Quarantined || !a.grantAhead && !a.grantInUse {
			continue
		}
		witnesses++
		if a.grantAhead {
			ahead++
			suspected = suspected || !b.isExcessSpent(name, now)
		}
	}
	if ahead >= 2 && 2*ahead > witnesses {
		b.restoreProven, b.restoredUntil = true, now.Add(withClockMargin(rules.Duration)+withEndGrace(b.maxAttemptTimeout))
		for name, a := range b.accounts {
			if a.grantAhead && !a.facts.Quarantined {
				b.excess[name] = excessRecord{endsAt: b.restoredUntil, afterRestore: true}
			}
			a.grantAhead = false
		}
	}
	b.hubRestored = suspected || b.restoreProven
}

// Excesses returns all records, to be stored, and for how long all claims count after a
// restore.
func (b *Accountant) Excesses(now time.Time) (all []Excess, restored time.Duration) {
	for member, record := range b.excess {
		all = append(all, Excess{
			Member: member, Remaining: max(0, record.endsAt.Sub(now)), AfterRestore: record.afterRestore,
			UnknownGrant: !record.witnessUntil.IsZero(), WitnessRemaining: max(0, record.witnessUntil.Sub(now)),
		})
	}
	return all, max(0, b.restoredUntil.Sub(now))
}

// LearnExcess adds a stored record, counted from now. Of two records, the one that ends
// first stays.
func (b *Accountant) LearnExcess(e Excess, now time.Time) {
	next := excessRecord{endsAt: now.Add(e.Remaining), afterRestore: e.AfterRestore}
	if e.UnknownGrant {
		next.witnessUntil = now.Add(e.WitnessRemaining)
	}
	if record, ok := b.excess[e.Member]; ok {
		next.endsAt, next.afterRestore = earlierOf(next.endsAt, record.endsAt), next.afterRestore || record.afterRestore
		if next.witnessUntil.IsZero() || !record.witnessUntil.IsZero() {
			next.witnessUntil = record.witnessUntil
		}
	}
	b.excess[e.Member] = next
}

// LearnRestore adds for how long all claims count after a restore.
func (b *Accountant) LearnRestore(remaining time.Duration, now time.Time) {
	if remaining > 0 {
		b.restoredUntil = storedtime.LaterOf(b.restoredUntil, now.Add(remaining))
	}
}
