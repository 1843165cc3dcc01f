package budget

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/storedtime"
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
	// ReportUID is that of the hub's copy. Sequences begin anew with another one.
	ReportUID string
	BootID    string
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
	// Quarantined: a person has excluded the member from the budget.
	Quarantined bool
	// Silent: the member has not reported for longer than it should. This is for people
	// only; the account counts what the member may be running.
	Silent bool
	Weight int32
	// MemberGrantSequence is the sequence of a grant in the member that is newer than the
	// hub's.
	MemberGrantSequence int64
}

func (f *MemberFacts) isLimited() bool { return f.Transfers != nil && f.Transfers.Limited }

// highestConcurrency returns what any policy lets the member run that it may have.
func (f *MemberFacts) highestConcurrency() int32 {
	highest := f.DesiredPolicy.Concurrency
	for _, b := range []*Bounds{f.PlannedPolicy, f.SupersededPolicy, f.ReportedPolicy} {
		if b != nil {
			highest = max(highest, b.Concurrency)
		}
	}
	return highest
}

// trackedGrant is a grant that may be valid, or under which attempts may still run.
type trackedGrant struct {
	Grant
	// expiresAt is when the member must treat the grant as expired, by the hub's clock.
	expiresAt time.Time
	// allSources: the source groups of the grant are unknown.
	allSources bool
	// claimed: only the member says that it has this grant.
	claimed bool
}

// covers reports whether o counts for no more than g, and no longer.
func (g trackedGrant) covers(o trackedGrant) bool {
	return g.Slots >= o.Slots && !g.expiresAt.Before(o.expiresAt) && (g.allSources || !o.allSources && len(o.Sources) == 0) && g.claimed == o.claimed
}

// account is the account of a member, or of a cluster that was one.
type account struct {
	member string
	// cluster of the account, once it is known
	cluster      string
	facts        MemberFacts
	reportedAt   time.Time // time of the newest report
	requestedAt  time.Time // time of the request with requestNonce
	requestNonce string
	grants       []trackedGrant
	// ended are shares that the member had and has no more. Attempts begun under them may
	// still run, as far as its reports show them.
	ended []endedShare
	// unknownEndedAt is when a share of unknown size ended; zero for none.
	unknownEndedAt time.Time
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
	// given: the hub has planned or granted something to the cluster, also if that plan is
	// another cluster's by now. What a departed cluster without it may be running is the member's
	// word.
	given bool
	// trackedSince is when this accountant began to track the account. learnedUntil is
	// when all grants of earlier processes have expired.
	trackedSince, learnedUntil time.Time
	// reportMissing: there was no report at trackedSince.
	reportMissing bool
	// reportRead: this process has read the report in the member itself. What came after
	// that, it has given itself, whatever becomes of its connection to the member.
	reportRead bool
	// grantInUse: a grant of the member with slots was stored when this accountant was
	// created.
	grantInUse bool
	// grantAhead: the member has shown a grant that is newer than all that the hub knows,
	// and is a witness of a restore.
	grantAhead bool
	turnState
}

// observe updates the account with current facts.
func (a *account) observe(f MemberFacts, restored bool, now time.Time) {
	a.recordEnded(restored, now)
	// A person deletes the hub's copy of a report where a cluster's clock went back.
	isAnother := f.ReportSequence > 0 && a.facts.ReportUID != "" && f.ReportUID != a.facts.ReportUID
	newer := f.ReportSequence > a.facts.ReportSequence || isAnother
	if !newer && f.ReportSequence < a.facts.ReportSequence {
		// An older copy of the report says nothing new about transfers; the other facts
		// may be new.
		f.ReportSequence, f.BootID, f.Slots, f.Transfers = a.facts.ReportSequence, a.facts.BootID, a.facts.Slots, a.facts.Transfers
		f.ReportUID, f.ReportedPolicy, f.SourcesCurrent, f.PlanAcknowledged = a.facts.ReportUID, a.facts.ReportedPolicy, a.facts.SourcesCurrent, false
	}
	a.reportRead = a.reportRead || !f.ReportUnread
	f.ReportUnread = !a.reportRead
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
		a.given = true
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
		// The hub was restored from a backup and does not know this grant, or the member
		// lies. One such grant stands for all.
		a.grants = slices.DeleteFunc(a.grants, func(g trackedGrant) bool { return g.claimed })
		a.grants = append(a.grants, trackedGrant{
			Grant: Grant{Sequence: t.Grant, Share: Share{Slots: t.Slots}, Nonce: f.BootID + "/", Duration: maxGrantDuration}, expiresAt: now.Add(maxGrantDuration), allSources: true, claimed: true,
		})
	}
	if t.Nonce != a.requestNonce {
		a.requestNonce, a.requestedAt = t.Nonce, now
	}
}

// holdsSlots reports whether a grant may be in force that has slots.
func (a *account) holdsSlots() bool {
	return slices.ContainsFunc(a.grants, func(g trackedGrant) bool { return g.Slots > 0 })
}

func isNonceOfBoot(nonce, boot string) bool { return strings.HasPrefix(nonce, boot+"/") }

// recordGrant counts a grant before it is written.
func (a *account) recordGrant(g Grant, ends time.Time) {
	a.lastGrant, a.given = g, a.given || g.Slots > 0
	a.grants = append(a.grants, trackedGrant{Grant: g, expiresAt: ends})
	if len(a.grants) <= maxTrackedGrants {
		return
	}
	// Beyond maxTrackedGrants the two oldest grants are merged into one that covers both.
	first, second := a.grants[0], a.grants[1]
	if first.claimed || second.claimed {
		// What the member claims stays apart: it ends by itself.
		slices.SortStableFunc(a.grants, func(a, b trackedGrant) int { return cmp.Compare(boolToOrder(a.claimed), boolToOrder(b.claimed)) })
		first, second = a.grants[0], a.grants[1]
	}
	one := trackedGrant{Grant: second.Grant, expiresAt: storedtime.LaterOf(first.expiresAt, second.expiresAt), allSources: first.allSources || second.allSources}
	one.Share = first.Share.Max(second.Share)
	if first.Nonce != second.Nonce {
		one.Nonce = ""
	}
	a.grants = append([]trackedGrant{one}, a.grants[2:]...)
}

// maxPossible is the maximum of all grants that may be valid, and for how long. The next
// elected replica needs it beside the newest grant.
func (a *account) maxPossible(now time.Time) (s Share, left time.Duration) {
	for _, g := range a.grants {
		if !g.claimed {
			s = s.Max(g.Share)
			left = max(left, g.expiresAt.Sub(now))
		}
	}
	return s, left
}

func boolToOrder(v bool) int {
	if v {
		return 1
	}
	return 0
}
