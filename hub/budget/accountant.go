package budget

import (
	"maps"
	"slices"
	"time"
)

// StoredGrant is a grant as the hub has it, and what came with it.
type StoredGrant struct {
	Grant
	// Cluster that it is for.
	Cluster   string
	Unlimited bool
	// MaxPossible is the most of all grants that may have been in force when it was
	// written, and Left how long yet.
	MaxPossible Share
	PossibleFor time.Duration
}

// Accountant is the account of a fleet. Whoever is elected begins an empty one, and
// learns every grant and departure that is stored before anything is planned with it.
type Accountant struct {
	accounts map[string]*account
	// departed are clusters that are no members any more and may be running something.
	departed map[string]*account
	// restored: a member has what this hub has never given. What else it gave and does
	// not know of, only the members can tell.
	hubRestored bool
	// allocatedAt is when a plan was made last.
	allocatedAt time.Time
	// maxAttemptTimeout is the longest attemptTimeout that was seen.
	maxAttemptTimeout time.Duration
}

// NewAccountant returns an empty Book.
func NewAccountant() *Accountant {
	return &Accountant{accounts: map[string]*account{}, departed: map[string]*account{}}
}

func (b *Accountant) ensureAccount(member string) *account {
	a := b.accounts[member]
	if a == nil {
		a = &account{}
		b.accounts[member] = a
	}
	return a
}

// LearnGrant takes in a grant that is stored, and may be of another replica. When the
// request was received that it answers is not known: it counts as if it were given
// now. What the book has of the member stays, one that it knows as it was. Of another
// cluster than the member is now, it is that one's.
func (b *Accountant) LearnGrant(member string, s StoredGrant, now time.Time) {
	a := b.ensureAccount(member)
	a.lastGrant.Sequence = max(a.lastGrant.Sequence, s.Sequence)
	if a.cluster == "" {
		a.cluster = s.Cluster
	}
	if a.cluster != s.Cluster {
		other := &account{cluster: s.Cluster}
		other.learnGrant(s, now)
		b.addDeparted(member, other, now)
		return
	}
	a.lastGrant = Grant{Sequence: a.lastGrant.Sequence, Share: s.Share, Nonce: s.Nonce, Duration: s.Duration}
	a.learnGrant(s, now)
	a.grantStored = true
}

func (a *account) learnGrant(s StoredGrant, now time.Time) {
	if slices.ContainsFunc(a.grants, func(g trackedGrant) bool {
		return g.Sequence == s.Sequence && g.Nonce == s.Nonce && g.Slots == s.Slots && maps.Equal(g.Sources, s.Sources)
	}) {
		return
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
	a.learnedUntil = laterOf(a.learnedUntil, g.expiresAt)
}

// withClockMargin is for clocks that do not run alike.
func withClockMargin(d time.Duration) time.Duration { return d + d/100 }

// Observe takes in what is known of a member now.
func (b *Accountant) Observe(member string, f MemberFacts, now time.Time) {
	a := b.ensureAccount(member)
	b.maxAttemptTimeout = max(b.maxAttemptTimeout, f.DesiredPolicy.AttemptTimeout)
	for _, bounds := range []*Bounds{f.ReportedPolicy, f.PlannedPolicy, f.SupersededPolicy} {
		if bounds != nil {
			b.maxAttemptTimeout = max(b.maxAttemptTimeout, bounds.AttemptTimeout)
		}
	}
	if a.cluster != "" && f.Cluster != "" && a.cluster != f.Cluster {
		// The sequences go on; what the other cluster may be running stays apart.
		sequence := a.lastGrant.Sequence
		b.addDeparted(member, a, now)
		a = &account{lastGrant: Grant{Sequence: sequence}}
		b.accounts[member] = a
	}
	if t := f.Transfers; a.grantStored && (f.MemberGrantSequence > a.lastGrant.Sequence || t != nil && t.Grant > a.lastGrant.Sequence) {
		b.hubRestored = true
	}
	a.observe(f, now)
}

// RemoveMember says that there is no such member any more.
func (b *Accountant) RemoveMember(member string, now time.Time) {
	if a := b.accounts[member]; a != nil {
		b.addDeparted(member, a, now)
		delete(b.accounts, member)
	}
}

// RecordSequence says that a grant of a sequence was written that is no share of a budget.
func (b *Accountant) RecordSequence(member string, sequence int64) {
	a := b.ensureAccount(member)
	a.lastGrant.Sequence = max(a.lastGrant.Sequence, sequence)
}

// LastSequence of the newest grant that the book knows of for a member.
func (b *Accountant) LastSequence(member string) int64 {
	if a := b.accounts[member]; a != nil {
		return a.lastGrant.Sequence
	}
	return 0
}

// Members that the book has accounts of.
func (b *Accountant) Members() []string {
	names := make([]string, 0, len(b.accounts))
	for name := range b.accounts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// SafeShare is the share without a grant that the plan of a member may have; without known
// nobody knows yet.
func (b *Accountant) SafeShare(member string) (n int32, known bool) {
	a := b.accounts[member]
	if a == nil || a.facts.ReportSequence == 0 {
		return 0, false
	}
	return a.plannedSafe, true
}
