package budget

import (
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// attemptEndGrace is how long a timed-out attempt may take to end. Where
	// attemptTimeout is shorter, that bounds it.
	attemptEndGrace = time.Minute
	// maxGrantDuration is the longest duration of any grant.
	maxGrantDuration = 24 * time.Hour
	// maxTrackedGrants bounds the grants of one member that are tracked separately.
	maxTrackedGrants = 8
)

// Grant is a share for a limited time.
type Grant struct {
	Sequence int64
	Share
	// Nonce of the request that the grant answers.
	Nonce    string
	Duration time.Duration
}

// MemberFacts are what is known of a member.
type MemberFacts struct {
	// Cluster of the report, its sequence, and the boot id of the agent that wrote it;
	// zero without a report.
	Cluster        string
	ReportSequence int64
	BootID         string
	// Slots of the ledger and the reported transfers, both of one state.
	Slots     int32
	Transfers *v1alpha1.ReportedTransfers
	// ReportedPolicy is the policy in the report; nil if the report has none.
	ReportedPolicy *Bounds
	// PlannedPolicy is the policy of the plan on the hub; nil for none. PlanAcknowledged:
	// the report says that the ledger was written under that plan.
	PlannedPolicy    *Bounds
	PlanAcknowledged bool
	// SupersededPolicy is the maximum of earlier plans that were not acknowledged either;
	// nil for none.
	SupersededPolicy *Bounds
	// DesiredPolicy is what the fleet's policy asks for now.
	DesiredPolicy Bounds
	// SourcesCurrent: the reported policy has the current source groups of the fleet.
	SourcesCurrent bool
	// Learning: the member may have shown something newer than the hub knows.
	Learning bool
	// ReportUnread: this process has not read the report in the member itself.
	ReportUnread bool
	// Unfenced: another process may still write its decision about the member's grant.
	Unfenced bool
	// Grantable: a grant may be written for the member.
	Grantable bool
	// Silent: the member has not reported for longer than it should. This is for people
	// only; the account counts what the member may be running.
	Silent bool
	Weight int32
	// MemberGrantSequence is the sequence of a grant in the member that is newer than the
	// hub's.
	MemberGrantSequence int64
}

func (f *MemberFacts) isLimited() bool { return f.Transfers != nil && f.Transfers.Limited }

// trackedGrant is a grant that may be valid, or under which attempts may still run.
type trackedGrant struct {
	Grant
	// expiresAt is when the member must treat the grant as expired, by the hub's clock.
	expiresAt time.Time
	// allSources: the source groups of the grant are unknown.
	allSources bool
}

// covers reports whether o counts for no more than g, and no longer.
func (g trackedGrant) covers(o trackedGrant) bool {
	return g.Slots >= o.Slots && !g.expiresAt.Before(o.expiresAt) && (g.allSources || !o.allSources && len(o.Sources) == 0)
}

// account is the account of a member, or of a cluster that was one.
type account struct {
	// cluster of the account, once it is known
	cluster      string
	facts        MemberFacts
	reportedAt   time.Time // time of the newest report
	requestedAt  time.Time // time of the request with requestNonce
	requestNonce string
	grants       []trackedGrant
	// lastGrant is the newest grant, kept for its sequence and nonce.
	lastGrant Grant
	// unacknowledged is the maximum of plans that may be in force but are not
	// acknowledged; nil for none.
	unacknowledged *Bounds
	// plannedSafe is the share without a grant that plans may give the member. maxSafe is
	// the highest one that a plan may have given it and that is not acknowledged to be
	// replaced.
	plannedSafe, maxSafe int32
	departed             bool
	// trackedSince is when this accountant began to track the account. learnedUntil is
	// when all grants of earlier processes have expired.
	trackedSince, learnedUntil time.Time
	// reportMissing: there was no report at trackedSince.
	reportMissing bool
	// grantStored: a grant of the member was stored when this accountant was created.
	grantStored bool
	turnState
}

// observe updates the account with current facts.
func (a *account) observe(f MemberFacts, now time.Time) {
	newer := f.ReportSequence > a.facts.ReportSequence
	if !newer && f.ReportSequence < a.facts.ReportSequence {
		// An older copy of the report says nothing new about transfers; the other facts
		// may be new.
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
			a.plannedSafe = a.maxSafe // raised by another replica
		}
		if f.PlanAcknowledged && f.PlannedPolicy.Safe == a.plannedSafe {
			// The planner and the member have caught up.
			a.maxSafe = a.plannedSafe
		}
	}
	if newer {
		a.reportedAt = now
		a.observeReport(now)
	}
}

// observeReport updates the account with a newer report.
func (a *account) observeReport(now time.Time) {
	f := &a.facts
	t := f.Transfers
	if t == nil {
		return
	}
	// A grant of an agent process that has ended is void.
	a.endTurnOnceUsed()
	a.grants = slices.DeleteFunc(a.grants, func(g trackedGrant) bool {
		return g.Sequence < t.Grant || g.Sequence == t.Grant && t.Slots == 0 || f.BootID != "" && g.Nonce != "" && !isNonceOfBoot(g.Nonce, f.BootID)
	})
	if t.Slots > 0 && t.Grant > a.lastGrant.Sequence {
		// The hub was restored from a backup and does not know this grant.
		a.grants = append(a.grants, trackedGrant{
			Grant: Grant{Sequence: t.Grant, Share: Share{Slots: t.Slots}, Nonce: f.BootID + "/", Duration: maxGrantDuration}, expiresAt: now.Add(maxGrantDuration), allSources: true,
		})
	}
	if t.Nonce != a.requestNonce {
		a.requestNonce, a.requestedAt = t.Nonce, now
	}
}

func isNonceOfBoot(nonce, boot string) bool { return strings.HasPrefix(nonce, boot+"/") }

// attemptLifetime bounds how long an attempt may run after it was last seen to be
// allowed.
func (a *account) attemptLifetime() time.Duration {
	highest := a.facts.DesiredPolicy.AttemptTimeout
	for _, b := range []*Bounds{a.facts.ReportedPolicy, a.facts.PlannedPolicy, a.unacknowledged} {
		if b != nil {
			highest = max(highest, b.AttemptTimeout)
		}
	}
	return highest + highest/100 + min(highest, attemptEndGrace)
}

// ungrantedConcurrency is the concurrency of a member that is not limited by grants, may
// not be limited yet, or may get any grant.
func (a *account) ungrantedConcurrency() int32 {
	f := &a.facts
	highest := int32(0)
	if f.ReportSequence > 0 && !f.isLimited() {
		if f.ReportedPolicy != nil {
			highest = f.ReportedPolicy.Concurrency
		}
		if f.PlanAcknowledged && f.PlannedPolicy != nil {
			highest = max(highest, f.PlannedPolicy.Concurrency)
		}
	}
	if a.unacknowledged != nil {
		highest = max(highest, a.unacknowledged.Concurrency)
	}
	if f.Unfenced {
		highest = max(highest, f.DesiredPolicy.Concurrency)
		for _, b := range []*Bounds{f.ReportedPolicy, f.PlannedPolicy} {
			if b != nil {
				highest = max(highest, b.Concurrency)
			}
		}
	}
	return highest
}

// unknownSlots bounds what a member may be running that no report shows, and until when:
// it has a plan, and its reports may be older than what came of that. After a restore
// from a backup the reports and grants of the hub say nothing of what came after the
// backup.
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

// currentSafe is the share that the member may use without a grant.
func (a *account) currentSafe() int32 {
	highest := a.maxSafe
	if a.facts.isLimited() {
		highest = max(highest, a.facts.Transfers.Safe)
	}
	if a.unacknowledged != nil {
		highest = max(highest, a.unacknowledged.Safe)
	}
	return highest
}

// heldShare bounds what a member may be running, in total and by source group. until is
// when the bound falls if nothing is heard of the member; zero for never.
func (a *account) heldShare(groups []Group, restored bool, now time.Time) (h Share, until time.Time) {
	lifetime := a.attemptLifetime()
	anyGroup := int32(0) // slots that may all be of one group
	stillCounts := func(t time.Time) bool {
		if !now.Before(t) {
			return false
		}
		until = laterOf(until, t)
		return true
	}
	for _, g := range a.grants {
		if stillCounts(g.expiresAt.Add(lifetime)) {
			h = h.Max(g.Share)
			if g.allSources {
				anyGroup = max(anyGroup, g.Slots)
			}
		}
	}
	f := &a.facts
	if slots, ends := a.unknownSlots(restored); slots > 0 && stillCounts(ends.Add(lifetime)) {
		h.Slots = max(h.Slots, slots)
		anyGroup = h.Slots
	}
	if f.ReportSequence > 0 && (f.Slots > 0 && stillCounts(a.reportedAt.Add(lifetime))) {
		running := Share{Slots: f.Slots}
		if f.Transfers != nil && len(groups) > 0 {
			running.Sources = make(map[string]int32, len(f.Transfers.Sources))
			for _, s := range f.Transfers.Sources {
				running.Sources[s.Name] = s.Running
			}
		}
		h = h.Max(running)
	}
	// A member keeps using what needs no grant. A departed cluster may still run what it
	// had begun.
	ungranted, safe := a.ungrantedConcurrency(), a.currentSafe()
	switch {
	case !a.departed:
		if ungranted > 0 {
			until = time.Time{}
		}
		h.Slots = max(h.Slots, ungranted, safe)
	case max(ungranted, safe) > 0 && stillCounts(a.reportedAt.Add(lifetime)):
		h.Slots = max(h.Slots, ungranted, safe)
	}
	if a.departed || f.Unfenced || f.ReportSequence > 0 && (!f.isLimited() || !f.SourcesCurrent) || a.unacknowledged != nil && !a.unacknowledged.Limited {
		anyGroup = h.Slots
	}
	if len(groups) == 0 {
		h.Sources = nil
		return h, until
	}
	sources := make(map[string]int32, len(groups))
	for _, g := range groups {
		sources[g.Name] = max(anyGroup, h.Sources[g.Name])
	}
	h.Sources = sources
	return h, until
}

// recordGrant counts a grant before it is written.
func (a *account) recordGrant(g Grant, ends time.Time) {
	a.lastGrant = g
	a.grants = append(a.grants, trackedGrant{Grant: g, expiresAt: ends})
	if len(a.grants) <= maxTrackedGrants {
		return
	}
	// Beyond maxTrackedGrants the two oldest grants are merged into one that covers both.
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

// maxPossible is the maximum of all grants that may be valid, and for how long. The next
// elected replica needs it beside the newest grant.
func (a *account) maxPossible(now time.Time) (s Share, left time.Duration) {
	for _, g := range a.grants {
		s = s.Max(g.Share)
		left = max(left, g.expiresAt.Sub(now))
	}
	return s, left
}
