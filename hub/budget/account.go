package budget

import (
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// attemptEndGrace is how long an attempt that has timed out may take to end, where it may
	// take no less until it times out.
	attemptEndGrace = time.Minute
	// maxGrantDuration is how long any grant may hold.
	maxGrantDuration = 24 * time.Hour
	// maxTrackedGrants bounds how many grants of one member are told apart.
	maxTrackedGrants = 8
)

// Grant is a share for a while.
type Grant struct {
	Sequence int64
	Share
	// Nonce of the request that it answers.
	Nonce    string
	Duration time.Duration
}

// MemberFacts are what is known of a member.
type MemberFacts struct {
	// Cluster that the report is of, its sequence, and the process that wrote it; zero
	// where there is none.
	Cluster        string
	ReportSequence int64
	BootID         string
	// Slots of the ledger, and what the member says of its transfers, of one state.
	Slots     int32
	Transfers *v1alpha1.ReportedTransfers
	// ReportedPolicy is the policy by the report; nil where it tells none.
	ReportedPolicy *Bounds
	// PlannedPolicy is that of the plan on the hub; nil for none. Acknowledged: the report
	// says that the ledger was written under it.
	PlannedPolicy    *Bounds
	PlanAcknowledged bool
	// SupersededPolicy is the most that plans before that allow which were not acknowledged
	// either; nil for none.
	SupersededPolicy *Bounds
	// DesiredPolicy is what the fleet's policy asks for now.
	DesiredPolicy Bounds
	// SourcesCurrent: the policy by the report has the fleet's groups as they are now.
	SourcesCurrent bool
	// Learning: what the hub has of the member may be older than what that has shown.
	Learning bool
	// Unread: this process has not read the report in the member itself.
	ReportUnread bool
	// Unguarded: what another process has decided of its grants may still be written.
	Unfenced bool
	// Grantable: a grant may be written for it.
	Grantable bool
	// Dark: it has not been heard of for longer than it should. That is for people: it
	// is counted by what it may be running.
	Silent bool
	Weight int32
	// MemberGrantSequence is the sequence of a grant in the member that is newer than the hub's.
	MemberGrantSequence int64
}

func (f *MemberFacts) isLimited() bool { return f.Transfers != nil && f.Transfers.Limited }

// trackedGrant is a grant that may be in force, or under which something may run yet.
type trackedGrant struct {
	Grant
	// expiresAt is when it has ended in the member, by the hub's clock.
	expiresAt time.Time
	// every: nobody knows which sources it is for.
	allSources bool
}

// covers tells that another one counts for no more, and no longer.
func (g trackedGrant) covers(o trackedGrant) bool {
	return g.Slots >= o.Slots && !g.expiresAt.Before(o.expiresAt) && (g.allSources || !o.allSources && len(o.Sources) == 0)
}

// account is what the book has of one member, or of a cluster that was one.
type account struct {
	// cluster that it is of, once that is known.
	cluster      string
	facts        MemberFacts
	reportedAt   time.Time // the newest report
	requestedAt  time.Time // the request of that nonce
	requestNonce string
	grants       []trackedGrant
	// lastGrant is the grant that was made last, kept for its sequence and nonce.
	lastGrant Grant
	// unacknowledged is the most that plans allow which may be in force by now and are not
	// acknowledged; nil for none.
	unacknowledged *Bounds
	// plannedSafe is the share without a grant that plans may give it, and high the most that
	// one may have given it that is not acknowledged to be gone.
	plannedSafe, maxSafe int32
	departed             bool
	// trackedSince is when the book began to keep it, and horizon when all grants have ended
	// that others may have given before.
	trackedSince, learnedUntil time.Time
	// missing: there was no report of it then.
	reportMissing bool
	// learned: a grant of it was stored when the book was begun.
	grantStored bool
	turnState
}

// observe takes in what is known now.
func (a *account) observe(f MemberFacts, now time.Time) {
	newer := f.ReportSequence > a.facts.ReportSequence
	if !newer && f.ReportSequence < a.facts.ReportSequence {
		// An older copy says nothing of what runs; the rest may be new.
		f.ReportSequence, f.BootID, f.Slots, f.Transfers = a.facts.ReportSequence, a.facts.BootID, a.facts.Slots, a.facts.Transfers
		f.ReportedPolicy, f.SourcesCurrent, f.PlanAcknowledged = a.facts.ReportedPolicy, a.facts.SourcesCurrent, false
	}
	a.facts = f
	if f.Cluster != "" {
		a.cluster = f.Cluster
	}
	if a.trackedSince.IsZero() {
		a.trackedSince, a.reportMissing = now, f.ReportSequence == 0
	}
	switch {
	case f.PlannedPolicy == nil:
	case f.PlanAcknowledged:
		a.unacknowledged = nil
	default:
		a.unacknowledged = a.unacknowledged.Max(*f.PlannedPolicy)
		if f.SupersededPolicy != nil {
			a.unacknowledged = a.unacknowledged.Max(*f.SupersededPolicy)
		}
	}
	if f.PlannedPolicy != nil {
		a.maxSafe = max(a.maxSafe, f.PlannedPolicy.Safe)
		if a.maxSafe == f.PlannedPolicy.Safe && a.plannedSafe < a.maxSafe {
			a.plannedSafe = a.maxSafe // of another replica
		}
		if f.PlanAcknowledged && f.PlannedPolicy.Safe == a.plannedSafe {
			// Whoever makes plans has caught up, and so has the member.
			a.maxSafe = a.plannedSafe
		}
	}
	if newer {
		a.reportedAt = now
		a.observeReport(now)
	}
}

// observeReport takes in a report that is newer than those before.
func (a *account) observeReport(now time.Time) {
	f := &a.facts
	t := f.Transfers
	if t == nil {
		return
	}
	// What another process asked for gives this one nothing, and that one is gone.
	a.endTurnOnceUsed()
	a.grants = slices.DeleteFunc(a.grants, func(g trackedGrant) bool {
		return g.Sequence < t.Grant || g.Sequence == t.Grant && t.Slots == 0 || f.BootID != "" && g.Nonce != "" && !isNonceOfBoot(g.Nonce, f.BootID)
	})
	if t.Slots > 0 && t.Grant > a.lastGrant.Sequence {
		// A hub that was restored from a backup does not know it.
		a.grants = append(a.grants, trackedGrant{
			Grant: Grant{Sequence: t.Grant, Share: Share{Slots: t.Slots}, Nonce: f.BootID + "/", Duration: maxGrantDuration}, expiresAt: now.Add(maxGrantDuration), allSources: true,
		})
	}
	if t.Nonce != a.requestNonce {
		a.requestNonce, a.requestedAt = t.Nonce, now
	}
}

func isNonceOfBoot(nonce, boot string) bool { return strings.HasPrefix(nonce, boot+"/") }

// attemptLifetime is how long an attempt may run on after it was last seen to be allowed.
func (a *account) attemptLifetime() time.Duration {
	most := a.facts.DesiredPolicy.AttemptTimeout
	for _, b := range []*Bounds{a.facts.ReportedPolicy, a.facts.PlannedPolicy, a.unacknowledged} {
		if b != nil {
			most = max(most, b.AttemptTimeout)
		}
	}
	return most + most/100 + min(most, attemptEndGrace)
}

// ungrantedConcurrency is the concurrency of a member that goes by no grants, or may not yet, or
// may be given any.
func (a *account) ungrantedConcurrency() int32 {
	f := &a.facts
	most := int32(0)
	if f.ReportSequence > 0 && !f.isLimited() {
		if f.ReportedPolicy != nil {
			most = f.ReportedPolicy.Concurrency
		}
		if f.PlanAcknowledged && f.PlannedPolicy != nil {
			most = max(most, f.PlannedPolicy.Concurrency)
		}
	}
	if a.unacknowledged != nil {
		most = max(most, a.unacknowledged.Concurrency)
	}
	if f.Unfenced {
		most = max(most, f.DesiredPolicy.Concurrency)
		for _, b := range []*Bounds{f.ReportedPolicy, f.PlannedPolicy} {
			if b != nil {
				most = max(most, b.Concurrency)
			}
		}
	}
	return most
}

// unknownSlots is what it may be running that nobody can tell of, and until when: it was
// planned for, and no report says what has come of that, nor may one that came late. A
// hub that was restored from a backup has reports and grants that say nothing of what
// came after it.
func (a *account) unknownSlots(restored bool) (slots int32, until time.Time) {
	f := &a.facts
	if read := !f.ReportUnread || !restored && !a.reportMissing; f.PlannedPolicy == nil || f.ReportSequence > 0 && read {
		return 0, until
	}
	until = a.learnedUntil
	if restored || until.IsZero() {
		until = laterOf(until, a.trackedSince.Add(maxGrantDuration))
	}
	return f.PlannedPolicy.Concurrency, until
}

// currentSafe is the share that it may use without a grant.
func (a *account) currentSafe() int32 {
	most := a.maxSafe
	if a.facts.isLimited() {
		most = max(most, a.facts.Transfers.Safe)
	}
	if a.unacknowledged != nil {
		most = max(most, a.unacknowledged.Safe)
	}
	return most
}

// heldShare is what a member may be running, and from which groups. until is when it is
// less if nothing is heard; zero for never.
func (a *account) heldShare(groups []Group, restored bool, now time.Time) (h Share, until time.Time) {
	lasting := a.attemptLifetime()
	every := int32(0) // that may all be of one group
	upTo := func(t time.Time) bool {
		if !now.Before(t) {
			return false
		}
		until = laterOf(until, t)
		return true
	}
	for _, g := range a.grants {
		if upTo(g.expiresAt.Add(lasting)) {
			h = h.Max(g.Share)
			if g.allSources {
				every = max(every, g.Slots)
			}
		}
	}
	f := &a.facts
	if slots, ends := a.unknownSlots(restored); slots > 0 && upTo(ends.Add(lasting)) {
		h.Slots = max(h.Slots, slots)
		every = h.Slots
	}
	if f.ReportSequence > 0 && (f.Slots > 0 && upTo(a.reportedAt.Add(lasting))) {
		running := Share{Slots: f.Slots}
		if f.Transfers != nil && len(groups) > 0 {
			running.Sources = make(map[string]int32, len(f.Transfers.Sources))
			for _, s := range f.Transfers.Sources {
				running.Sources[s.Name] = s.Running
			}
		}
		h = h.Max(running)
	}
	// What it may use without a grant it goes on to use; of a cluster that is no member
	// any more, what it had begun by then counts.
	whole, safe := a.ungrantedConcurrency(), a.currentSafe()
	switch {
	case !a.departed:
		if whole > 0 {
			until = time.Time{}
		}
		h.Slots = max(h.Slots, whole, safe)
	case max(whole, safe) > 0 && upTo(a.reportedAt.Add(lasting)):
		h.Slots = max(h.Slots, whole, safe)
	}
	if a.departed || f.Unfenced || f.ReportSequence > 0 && (!f.isLimited() || !f.SourcesCurrent) || a.unacknowledged != nil && !a.unacknowledged.Limited {
		every = h.Slots
	}
	if len(groups) == 0 {
		h.Sources = nil
		return h, until
	}
	sources := make(map[string]int32, len(groups))
	for _, g := range groups {
		sources[g.Name] = max(every, h.Sources[g.Name])
	}
	h.Sources = sources
	return h, until
}

// recordGrant notes a grant before it is written.
func (a *account) recordGrant(g Grant, ends time.Time) {
	a.lastGrant = g
	a.grants = append(a.grants, trackedGrant{Grant: g, expiresAt: ends})
	if len(a.grants) <= maxTrackedGrants {
		return
	}
	// Of many, the first two are taken for one that is as much, and as long, as both.
	first, second := a.grants[0], a.grants[1]
	one := trackedGrant{Grant: second.Grant, expiresAt: laterOf(first.expiresAt, second.expiresAt), allSources: first.allSources || second.allSources}
	one.Share = first.Share.Max(second.Share)
	if first.Nonce != second.Nonce {
		one.Nonce = ""
	}
	a.grants = append([]trackedGrant{one}, a.grants[2:]...)
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// maxPossible is the most of all grants that may be in force, and how long yet: what
// the next elected replica must know beside the newest one.
func (a *account) maxPossible(now time.Time) (s Share, left time.Duration) {
	for _, g := range a.grants {
		s = s.Max(g.Share)
		left = max(left, g.expiresAt.Sub(now))
	}
	return s, left
}
