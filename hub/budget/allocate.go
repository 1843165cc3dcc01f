package budget

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Rules are the fleet-wide budget of the fleet's policy.
type Rules struct {
	// Total is the fleetConcurrency in force.
	Total  int64
	Groups []Group
	// Duration of grants, and EndsIn when a lower Total comes into force; 0 for never. No
	// grant is valid for longer.
	Duration, EndsIn time.Duration
	// RisesAt is when a higher Total comes into force; zero for never. It is for people only.
	RisesAt time.Time
	// ExcessTolerance is how long counts what a member claims beyond what the hub knows;
	// 0 for as long as attempts may run.
	ExcessTolerance time.Duration
}

// GrantWrite is a grant that has to be written.
type GrantWrite struct {
	Member string
	Grant
	// MaxPossible and PossibleFor are stored with the grant, for the next elected
	// replica.
	MaxPossible Share
	PossibleFor time.Duration
	// Ended is stored too: the highest share that the member had before.
	Ended Share
}

// MemberAccount describes the share of a member.
type MemberAccount struct {
	Member                string
	Granted, Held, Wanted int32
	// Sources are the held transfers by source group.
	Sources map[string]int32
	// HeldUntil is when less is held at the latest if nothing is heard of the member;
	// zero for never, or if only the safe share is held.
	HeldUntil time.Time
	// Excess is how many slots the member claims beyond what the hub has planned or granted.
	Excess int32
	// Departed: the cluster is no member any more, or the member is another cluster now.
	Departed        bool
	Silent          bool
	Reason, Message string
}

// Allocation is the result of Allocate.
type Allocation struct {
	Grants   []GrantWrite
	Accounts []MemberAccount
	// RecheckAt is when to allocate again if nothing changes; zero for never.
	RecheckAt time.Time
	// Held is the sum over all accounts.
	Held int64
}

// allocationEntry is one account during Allocate.
type allocationEntry struct {
	name    string
	account *account
	held    Share
	until   time.Time
	excess  int32
	// hasRequest: a grant would answer a request. Accounts without a request keep what
	// they have.
	hasRequest bool
	target     Share
}

// allocator is the state of one Allocate.
type allocator struct {
	rules          Rules
	now            time.Time
	accountant     *Accountant
	entries        []allocationEntry
	heldTotal      int64
	heldBySource   map[string]int64
	raisesBlocked  bool // what is held is not fully known yet
	oversubscribed bool // a member wants more than its target
	excessCounts   bool // claims of a member are held that the hub does not know of
	result         Allocation
}

// Allocate decides which grants to write, and counts them from now on, whether or not
// they are written.
func (b *Accountant) Allocate(rules Rules, now time.Time) Allocation {
	b.detectRestore(rules, now)
	b.forgetExcesses(now)
	p := allocator{rules: rules, now: now, accountant: b, heldBySource: map[string]int64{}}
	for _, name := range b.Members() {
		p.addEntry(name, b.accounts[name])
	}
	for _, name := range slices.Sorted(maps.Keys(b.departed)) {
		a := b.departed[name]
		if held, _ := b.heldShare(a, rules.Groups, now); held.Slots == 0 && !b.isQuarantined(a.member) {
			delete(b.departed, name)
			continue
		}
		p.addEntry(name, a)
	}
	p.raiseSafeShares()
	b.chargeUsage(&p)
	p.computeTargets()
	p.issueGrants()
	p.describeAccounts()
	return p.result
}

func (p *allocator) addEntry(name string, a *account) {
	held, until, excess := p.accountant.assess(a, p.rules.Groups, p.now)
	if excess > 0 || a.grantAhead {
		p.accountant.recordExcess(a, p.rules, p.now)
	}
	e := allocationEntry{name: name, account: a, held: held, until: until, excess: excess, hasRequest: a.hasOpenRequest(p.rules, p.now)}
	p.entries = append(p.entries, e)
	p.addHeld(held, 1)
	p.raisesBlocked = p.raisesBlocked || !a.departed && a.facts.Learning && !a.facts.Quarantined
}

func (p *allocator) addHeld(s Share, sign int64) {
	p.heldTotal += sign * int64(s.Slots)
	for name, n := range s.Sources {
		p.heldBySource[name] += sign * int64(n)
	}
}

// hasOpenRequest reports whether the member would use a grant.
func (a *account) hasOpenRequest(rules Rules, now time.Time) bool {
	f := &a.facts
	return !a.departed && !f.Quarantined && f.Grantable && f.isLimited() && f.SourcesCurrent && a.requestNonce != "" && isNonceOfBoot(a.requestNonce, f.BootID) && now.Before(a.requestedAt.Add(rules.Duration))
}

// refreshHeld updates the sums after an account has changed.
func (p *allocator) refreshHeld(e *allocationEntry) {
	p.addHeld(e.held, -1)
	e.held, e.until = p.accountant.heldShare(e.account, p.rules.Groups, p.now)
	p.addHeld(e.held, 1)
}

// raiseSafeShares raises safe shares to those of the policy as far as there is room:
// members use them without a request.
func (p *allocator) raiseSafeShares() {
	for i := range p.entries {
		e := &p.entries[i]
		f := &e.account.facts
		want := f.DesiredPolicy.Safe
		if e.account.departed || f.Quarantined || f.ReportSequence == 0 || !f.DesiredPolicy.Limited {
			continue
		}
		if more := int64(want) - int64(e.held.Slots); want > e.account.plannedSafe && more > 0 && (p.raisesBlocked || more > p.rules.Total-p.heldTotal) {
			continue
		}
		// A reduced share counts in full until the reduction is acknowledged.
		e.account.plannedSafe, e.account.maxSafe = want, max(e.account.maxSafe, want)
		p.refreshHeld(e)
	}
}

// computeTargets computes the share that each member should have.
func (p *allocator) computeTargets() {
	total := p.rules.Total
	groups := slices.Clone(p.rules.Groups)
	var demands []Demand
	for i := range p.entries {
		e := &p.entries[i]
		f := &e.account.facts
		if f.Quarantined {
			continue
		}
		d := Demand{Member: e.name, Weight: f.Weight, Floor: max(e.account.currentSafe(), f.DesiredPolicy.Safe), Usage: e.account.usage, HasTurn: e.account.hasTurn(p.now)}
		switch {
		case e.hasRequest:
			d.Wanted = f.Transfers.Wanted
			// It may want one of each group beyond what it runs at a time.
			d.Most = max(f.highestConcurrency(), d.Wanted-int32(len(f.Transfers.Sources)))
			for _, s := range f.Transfers.Sources {
				if s.Wanted > 0 {
					if d.Sources == nil {
						d.Sources = map[string]int32{}
					}
					d.Sources[s.Name] = s.Wanted
				}
			}
		case e.hasIdleGrant():
		default:
			total -= int64(max(e.held.Slots, d.Floor))
			for g := range groups {
				groups[g].Concurrency -= e.held.Sources[groups[g].Name]
			}
			continue
		}
		demands = append(demands, d)
	}
	targets := ComputeTargets(total, groups, demands)
	for i, n := 0, 0; i < len(p.entries); i++ {
		e := &p.entries[i]
		if !e.hasRequest && !e.hasIdleGrant() {
			continue
		}
		e.target = targets[n]
		p.oversubscribed = p.oversubscribed || e.target.Slots < demands[n].Wanted
		n++
	}
}

// hasIdleGrant reports whether a member holds a grant and wants nothing.
func (e *allocationEntry) hasIdleGrant() bool {
	f := &e.account.facts
	return !e.account.departed && !f.Quarantined && f.Grantable && f.isLimited() && f.Transfers.Wanted == 0 && e.account.lastGrant.Slots > 0 && len(e.account.grants) > 0
}

// issueGrants issues reductions first, since they are always safe, then raises, to the
// members with the least first.
func (p *allocator) issueGrants() {
	order := make([]*allocationEntry, len(p.entries))
	for i := range p.entries {
		order[i] = &p.entries[i]
	}
	slices.SortStableFunc(order, func(a, b *allocationEntry) int {
		return cmp.Or(
			cmp.Compare(int64(a.held.Slots)*int64(max(1, b.account.facts.Weight)), int64(b.held.Slots)*int64(max(1, a.account.facts.Weight))),
			cmp.Compare(b.account.facts.Weight, a.account.facts.Weight),
			strings.Compare(a.name, b.name),
		)
	})
	for _, e := range order {
		switch {
		case e.hasRequest:
			p.answerRequest(e)
		case p.oversubscribed && e.hasIdleGrant():
			p.issueGrant(e, Share{})
		}
	}
}

// answerRequest issues a grant if the request has no answer yet, or if its answer
// changes.
func (p *allocator) answerRequest(e *allocationEntry) {
	last := e.account.lastGrant
	next := p.fitShare(e)
	current := last.Share
	switch fresh := last.Nonce != e.account.requestNonce; {
	case fresh && next.Slots == 0 && !e.account.holdsSlots() && !p.changesRequestInterval(e.account):
		return // it has nothing, and gets nothing
	case fresh, exceeds(next, current):
	case p.oversubscribed && exceeds(current, next):
	default:
		return
	}
	p.issueGrant(e, next)
}

// changesRequestInterval reports whether a grant without slots is useful: an agent requests three times
// in the duration of the last grant of its process. A request counts for as long as a grant, so a
// member with a longer one is not seen to wait; one whose last grant was cut short requests too often.
func (p *allocator) changesRequestInterval(a *account) bool {
	last := a.lastGrant
	if !isNonceOfBoot(last.Nonce, a.facts.BootID) {
		return v1alpha1.AssumedGrantDuration > p.rules.Duration
	}
	return last.Duration > p.rules.Duration || last.Slots > 0 && last.Duration > 0 && last.Duration < p.rules.Duration
}

// exceeds reports whether a has more than b in total or of any group.
func exceeds(a, b Share) bool {
	if a.Slots > b.Slots {
		return true
	}
	for name, n := range a.Sources {
		if n > b.Sources[name] {
			return true
		}
	}
	return false
}

// fitShare cuts the target to the room beside what all others may be running. Over the
// budget it gives a member no right to what it holds itself: by a late report that may
// have ended long ago.
func (p *allocator) fitShare(e *allocationEntry) Share {
	s := Share{Slots: e.target.Slots}
	for _, g := range p.rules.Groups {
		n := min(e.target.Sources[g.Name], p.boundShare(int64(e.held.Sources[g.Name]), int64(g.Concurrency)-p.heldBySource[g.Name]), v1alpha1.MaxSlots)
		if n > 0 {
			if s.Sources == nil {
				s.Sources = map[string]int32{}
			}
			s.Sources[g.Name] = n
		}
		// Slots for a group are useless without the group's share.
		s.Slots -= max(0, e.target.Sources[g.Name]-max(0, n))
	}
	s.Slots = max(0, min(s.Slots, p.boundShare(int64(e.held.Slots), p.rules.Total-p.heldTotal)))
	return s
}

func (p *allocator) boundShare(held, left int64) int32 {
	if p.raisesBlocked {
		left = min(left, 0)
	}
	return int32(max(0, min(held+left, v1alpha1.MaxSlots)))
}

func (p *allocator) issueGrant(e *allocationEntry, s Share) {
	a := e.account
	sequence := max(a.lastGrant.Sequence, v1alpha1.ClaimedSequence(a.facts.MemberGrantSequence), v1alpha1.ClaimedSequence(a.facts.Transfers.Grant)) + 1
	nonce, asked := a.requestNonce, a.requestedAt
	if !e.hasRequest {
		nonce, asked = cmp.Or(a.lastGrant.Nonce, NoRequest), p.now
	}
	duration := p.grantDuration(s, asked)
	if duration == 0 {
		s, duration = Share{}, p.rules.Duration
	}
	g := Grant{Sequence: sequence, Share: s, Nonce: nonce, Duration: duration}
	a.startTurn(g, p.now)
	a.recordGrant(g, asked.Add(withClockMargin(g.Duration)))
	p.refreshHeld(e)
	next := GrantWrite{Member: e.name, Grant: g}
	next.MaxPossible, next.PossibleFor = a.maxPossible(p.now)
	ended, _ := a.maxEnded(p.now)
	next.Ended = ended.Share
	p.result.Grants = append(p.result.Grants, next)
}

// grantDuration returns how long a grant is valid that answers a request which was seen at
// requestedAt.
//
// Invariant: it ends before a lower budget comes into force, on the slowest clock that is
// allowed for. The member counts from when it sent the request, which is earlier, by a clock
// that nobody sets: the hub may be away at the edge.
func (p *allocator) grantDuration(s Share, requestedAt time.Time) time.Duration {
	if s.Slots == 0 || p.rules.EndsIn == 0 {
		return p.rules.Duration
	}
	left := p.now.Add(p.rules.EndsIn).Sub(requestedAt)
	return max(0, min(p.rules.Duration, (left*100/101).Truncate(time.Second)))
}

// NoRequest is the nonce of a grant that answers no request and gives nothing.
const NoRequest = "none"
