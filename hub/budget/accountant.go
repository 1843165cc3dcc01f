package budget

import (
	"maps"
	"slices"
	"time"

	"github.com/pelotech/ot-fleet/api/storedtime"
)

// StoredGrant is a grant as it is stored on the hub.
type StoredGrant struct {
	Grant
	// Cluster that the grant is for.
	Cluster   string
	Unlimited bool
	// Ended is the highest share under which attempts may run on that were begun before
	// this grant.
	Ended Share
	// EndedUnknown: an earlier release stored the grant, without Ended.
	EndedUnknown bool
	// MaxPossible is the maximum of all grants that may have been valid when this one was
	// written, and PossibleFor how long.
	MaxPossible Share
	PossibleFor time.Duration
}

// Accountant accounts for a whole fleet. A newly elected replica starts with an empty
// one, and learns all stored grants and departures before the first Allocate.
type Accountant struct {
	accounts map[string]*account
	// departed are clusters that are no members any more but may be running transfers.
	departed map[string]*account
	// excess has what members claim beyond what the hub knows, by member.
	excess map[string]excessRecord
	// hubRestored: the hub was restored from a backup. What it gave after that, only the
	// members know. Until restoredUntil, attempts of that may run.
	hubRestored   bool
	restoredUntil time.Time
	// restoreProven: this process has seen that most members show it.
	restoreProven bool
	// allocatedAt is the time of the last Allocate.
	allocatedAt time.Time
	// maxAttemptTimeout is the longest attemptTimeout seen.
	maxAttemptTimeout time.Duration
}

// NewAccountant returns an empty Accountant.
func NewAccountant() *Accountant {
	return &Accountant{accounts: map[string]*account{}, departed: map[string]*account{}, excess: map[string]excessRecord{}}
}

func (b *Accountant) ensureAccount(member string) *account {
	a := b.accounts[member]
	if a == nil {
		a = &account{member: member}
		b.accounts[member] = a
	}
	return a
}

// LearnGrant adds a stored grant, which another replica may have written. Since it is
// unknown when the answered request was received, the grant counts from now. Grants that
// are already known stay as they are. A grant for another cluster than the member's is
// kept as that cluster's departure.
func (b *Accountant) LearnGrant(member string, s StoredGrant, now time.Time) {
	a := b.ensureAccount(member)
	a.lastGrant.Sequence = max(a.lastGrant.Sequence, s.Sequence)
	if a.cluster == "" {
		a.cluster = s.Cluster
	}
	if a.cluster != s.Cluster {
		other := &account{member: member, cluster: s.Cluster}
		other.learnGrant(s, now)
		b.addDeparted(member, other, now)
		return
	}
	a.lastGrant = Grant{Sequence: a.lastGrant.Sequence, Share: s.Share, Nonce: s.Nonce, Duration: s.Duration}
	a.learnGrant(s, now)
	a.grantInUse = s.Slots > 0
}

func (a *account) learnGrant(s StoredGrant, now time.Time) {
	a.given = true
	if slices.ContainsFunc(a.grants, func(g trackedGrant) bool {
		return g.Sequence == s.Sequence && g.Nonce == s.Nonce && g.Slots == s.Slots && maps.Equal(g.Sources, s.Sources)
	}) {
		return
	}
	// Since it is unknown when that share ended, it ends now.
	a.addEnded(endedShare{Share: s.Ended, allSources: true, endedAt: now})
	if s.EndedUnknown {
		a.unknownEndedAt = now
	}
	if s.PossibleFor > 0 {
		before := Grant{Sequence: s.Sequence - 1, Share: s.MaxPossible}
		a.trackLearned(trackedGrant{Grant: before, expiresAt: now.Add(withClockMargin(s.PossibleFor))})
	}
	if !s.Unlimited {
		a.trackLearned(trackedGrant{Grant: s.Grant, expiresAt: now.Add(withClockMargin(s.Duration))})
	}
}

func (a *account) trackLearned(g trackedGrant) {
	a.grants = append(a.grants, g)
	a.learnedUntil = storedtime.LaterOf(a.learnedUntil, g.expiresAt)
}

// withClockMargin allows for clocks of different speed.
func withClockMargin(d time.Duration) time.Duration { return d + d/100 }

// Observe updates the account of a member.
func (b *Accountant) Observe(member string, f MemberFacts, now time.Time) {
	a := b.ensureAccount(member)
	b.maxAttemptTimeout = max(b.maxAttemptTimeout, f.DesiredPolicy.AttemptTimeout)
	for _, bounds := range []*Bounds{f.PlannedPolicy, f.SupersededPolicy} {
		if bounds != nil {
			b.maxAttemptTimeout = max(b.maxAttemptTimeout, bounds.AttemptTimeout)
		}
	}
	if a.cluster != "" && f.Cluster != "" && a.cluster != f.Cluster {
		// Sequences continue; what the former cluster may be running is accounted for
		// separately.
		sequence := a.lastGrant.Sequence
		b.addDeparted(member, a, now)
		a = &account{member: member, lastGrant: Grant{Sequence: sequence}}
		b.accounts[member] = a
	}
	b.observeUnknownGrant(a, &f, now)
	if f.Quarantined {
		delete(b.excess, member) // whoever lifts the quarantine trusts the member again
	}
	a.observe(f, b.hubRestored, now)
}

// RemoveMember turns the account of a member into a departure. Nothing is kept of a
// member in quarantine: a person has written it off.
func (b *Accountant) RemoveMember(member string, now time.Time) {
	a := b.accounts[member]
	switch {
	case a == nil:
		return
	case a.facts.Quarantined:
		b.WriteOff(member)
	default:
		b.addDeparted(member, a, now)
	}
	delete(b.accounts, member)
}

// RecordSequence records the sequence of a written grant that is no share of the budget.
func (b *Accountant) RecordSequence(member string, sequence int64) {
	a := b.ensureAccount(member)
	a.lastGrant.Sequence = max(a.lastGrant.Sequence, sequence)
}

// LastSequence returns the sequence of the newest grant of a member.
func (b *Accountant) LastSequence(member string) int64 {
	if a := b.accounts[member]; a != nil {
		return a.lastGrant.Sequence
	}
	return 0
}

// Members returns the names of all members with an account.
func (b *Accountant) Members() []string {
	names := make([]string, 0, len(b.accounts))
	for name := range b.accounts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// SafeShare returns the share without a grant that the plan of a member may give it;
// known is false before the member has reported.
func (b *Accountant) SafeShare(member string) (n int32, known bool) {
	a := b.accounts[member]
	if a == nil || a.facts.ReportSequence == 0 {
		return 0, false
	}
	return a.plannedSafe, true
}
