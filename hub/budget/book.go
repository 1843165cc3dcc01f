package budget

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Rules are the fleet's policy.
type Rules struct {
	// Total is fleetConcurrency.
	Total    int64
	Groups   []Group
	Duration time.Duration
}

// Stored is a grant as the hub has it, and what came with it.
type Stored struct {
	Grant
	// Cluster that it is for.
	Cluster   string
	Unlimited bool
	// Possible is the most of all grants that may have been in force when it was
	// written, and Left how long yet.
	Possible Share
	Left     time.Duration
}

// Next is a grant to be written.
type Next struct {
	Member string
	Grant
	// Possible and Left are to be stored with it, for whoever learns from it.
	Possible Share
	Left     time.Duration
}

// Account is what is said of a member.
type Account struct {
	Member                string
	Granted, Held, Wanted int32
	// Sources that are held.
	Sources map[string]int32
	// Until is when less is held at the latest if nothing is heard; zero for never, or
	// where it is no more than the safe share.
	Until time.Time
	// Gone: it is no member any more, or that name's cluster is another now.
	Gone            bool
	Dark            bool
	Reason, Message string
}

// Plan is what is to be done.
type Plan struct {
	Grants   []Next
	Accounts []Account
	// Again is when to look again though nothing changes; zero for never.
	Again time.Time
	// Held is the sum.
	Held int64
}

// Book is the account of a fleet. Whoever is elected begins an empty one, and
// learns every grant and departure that is stored before anything is planned with it.
type Book struct {
	accounts map[string]*account
	// departed are clusters that are no members any more and may be running something.
	departed map[string]*account
	// restored: a member has what this hub has never given. What else it gave and does
	// not know of, only the members can tell.
	restored bool
	// planned is when a plan was made last.
	planned time.Time
	// attempts is the longest attemptTimeout that was seen.
	attempts time.Duration
}

// NewBook returns an empty Book.
func NewBook() *Book {
	return &Book{accounts: map[string]*account{}, departed: map[string]*account{}}
}

func (b *Book) of(member string) *account {
	a := b.accounts[member]
	if a == nil {
		a = &account{}
		b.accounts[member] = a
	}
	return a
}

// Learn takes in a grant that is stored, and may be of another replica. When the
// request was received that it answers is not known: it counts as if it were given
// now. What the book has of the member stays, one that it knows as it was. Of another
// cluster than the member is now, it is that one's.
func (b *Book) Learn(member string, s Stored, now time.Time) {
	a := b.of(member)
	a.last.Sequence = max(a.last.Sequence, s.Sequence)
	if a.cluster == "" {
		a.cluster = s.Cluster
	}
	if a.cluster != s.Cluster {
		other := &account{cluster: s.Cluster}
		other.learn(s, now)
		b.depart(member, other, now)
		return
	}
	a.last = Grant{Sequence: a.last.Sequence, Share: s.Share, Nonce: s.Nonce, Duration: s.Duration}
	a.learn(s, now)
	a.learned = true
}

func (a *account) learn(s Stored, now time.Time) {
	if slices.ContainsFunc(a.given, func(g given) bool {
		return g.Sequence == s.Sequence && g.Nonce == s.Nonce && g.Slots == s.Slots && maps.Equal(g.Sources, s.Sources)
	}) {
		return
	}
	if s.Left > 0 {
		before := Grant{Sequence: s.Sequence - 1, Share: s.Possible}
		a.learnt(given{Grant: before, ends: now.Add(margin(s.Left))})
	}
	if !s.Unlimited {
		a.learnt(given{Grant: s.Grant, ends: now.Add(margin(s.Duration))})
	}
}

func (a *account) learnt(g given) {
	a.given = append(a.given, g)
	a.horizon = later(a.horizon, g.ends)
}

// margin is for clocks that do not run alike.
func margin(d time.Duration) time.Duration { return d + d/100 }

// See takes in what is known of a member now.
func (b *Book) See(member string, f Facts, now time.Time) {
	a := b.of(member)
	b.attempts = max(b.attempts, f.Desired.AttemptTimeout)
	for _, bounds := range []*Bounds{f.InForce, f.Planned, f.Superseded} {
		if bounds != nil {
			b.attempts = max(b.attempts, bounds.AttemptTimeout)
		}
	}
	if a.cluster != "" && f.Cluster != "" && a.cluster != f.Cluster {
		// The sequences go on; what the other cluster may be running stays apart.
		sequence := a.last.Sequence
		b.depart(member, a, now)
		a = &account{last: Grant{Sequence: sequence}}
		b.accounts[member] = a
	}
	if t := f.Transfers; a.learned && (f.AheadGrant > a.last.Sequence || t != nil && t.Grant > a.last.Sequence) {
		b.restored = true
	}
	a.see(f, now)
}

// Remove says that there is no such member any more.
func (b *Book) Remove(member string, now time.Time) {
	if a := b.accounts[member]; a != nil {
		b.depart(member, a, now)
		delete(b.accounts, member)
	}
}

// Wrote says that a grant of a sequence was written that is no share of a budget.
func (b *Book) Wrote(member string, sequence int64) {
	a := b.of(member)
	a.last.Sequence = max(a.last.Sequence, sequence)
}

// Sequence of the newest grant that the book knows of for a member.
func (b *Book) Sequence(member string) int64 {
	if a := b.accounts[member]; a != nil {
		return a.last.Sequence
	}
	return 0
}

// Members that the book has accounts of.
func (b *Book) Members() []string {
	names := make([]string, 0, len(b.accounts))
	for name := range b.accounts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Safe is the share without a grant that the plan of a member may have; without known
// nobody knows yet.
func (b *Book) Safe(member string) (n int32, known bool) {
	a := b.accounts[member]
	if a == nil || a.facts.Report == 0 {
		return 0, false
	}
	return a.safe, true
}

// entry is a member while a plan is made.
type entry struct {
	name  string
	a     *account
	held  Share
	until time.Time
	// asks: it has a request that a grant can answer. Others have what they have.
	asks   bool
	target Share
}

// planning is a plan in the making.
type planning struct {
	rules Rules
	now   time.Time
	// restored: see Book.
	restored bool
	entries  []entry
	sum      int64
	sums     map[string]int64
	closed   bool // nothing may be raised: what is held is not known yet
	short    bool // somebody wants more than the target
	plan     Plan
}

// Plan decides what is to be written, and counts it from now on, be it written or
// not.
func (b *Book) Plan(rules Rules, now time.Time) Plan {
	p := planning{rules: rules, now: now, restored: b.restored, sums: map[string]int64{}}
	for _, name := range b.Members() {
		p.add(name, b.accounts[name])
	}
	for _, name := range sortedNames(b.departed) {
		a := b.departed[name]
		if held, _ := a.held(rules.Groups, b.restored, now); held.Slots == 0 {
			delete(b.departed, name)
			continue
		}
		p.add(name, a)
	}
	p.raiseSafe()
	b.charge(&p)
	p.aim()
	p.grant()
	p.tell()
	return p.plan
}

func (p *planning) add(name string, a *account) {
	held, until := a.held(p.rules.Groups, p.restored, p.now)
	e := entry{name: name, a: a, held: held, until: until, asks: a.asks(p.rules, p.now)}
	p.entries = append(p.entries, e)
	p.count(held, 1)
	p.closed = p.closed || !a.gone && a.facts.Learning
}

func (p *planning) count(s Share, sign int64) {
	p.sum += sign * int64(s.Slots)
	for name, n := range s.Sources {
		p.sums[name] += sign * int64(n)
	}
}

// asks tells that a grant would be taken up.
func (a *account) asks(rules Rules, now time.Time) bool {
	f := &a.facts
	return !a.gone && f.Grantable && f.limited() && f.SameSources && a.nonce != "" && ofBoot(a.nonce, f.Boot) && now.Before(a.asked.Add(rules.Duration))
}

// recount counts a member anew after something was given to it.
func (p *planning) recount(e *entry) {
	p.count(e.held, -1)
	e.held, e.until = e.a.held(p.rules.Groups, p.restored, p.now)
	p.count(e.held, 1)
}

// raiseSafe lets plans give safe shares as the policy asks for them, as far as there
// is room: they are used without anybody asking.
func (p *planning) raiseSafe() {
	for i := range p.entries {
		e := &p.entries[i]
		f := &e.a.facts
		want := f.Desired.Safe
		if e.a.gone || f.Report == 0 || !f.Desired.Limited {
			continue
		}
		if more := int64(want) - int64(e.held.Slots); want > e.a.safe && more > 0 && (p.closed || more > p.rules.Total-p.sum) {
			continue
		}
		// Of what is taken back, all counts on until that is acknowledged.
		e.a.safe, e.a.high = want, max(e.a.high, want)
		p.recount(e)
	}
}

// aim finds what each is to have.
func (p *planning) aim() {
	total := p.rules.Total
	groups := slices.Clone(p.rules.Groups)
	var demands []Demand
	for i := range p.entries {
		e := &p.entries[i]
		f := &e.a.facts
		d := Demand{Member: e.name, Weight: f.Weight, Floor: max(e.a.safeNow(), f.Desired.Safe), Used: e.a.used, Keeps: e.a.keeps(p.now)}
		switch {
		case e.asks:
			d.Wanted = f.Transfers.Wanted
			for _, s := range f.Transfers.Sources {
				if s.Wanted > 0 {
					if d.Sources == nil {
						d.Sources = map[string]int32{}
					}
					d.Sources[s.Name] = s.Wanted
				}
			}
		case e.idle():
		default:
			total -= int64(max(e.held.Slots, d.Floor))
			for g := range groups {
				groups[g].Concurrency -= e.held.Sources[groups[g].Name]
			}
			continue
		}
		demands = append(demands, d)
	}
	targets := Targets(total, groups, demands)
	for i, n := 0, 0; i < len(p.entries); i++ {
		e := &p.entries[i]
		if !e.asks && !e.idle() {
			continue
		}
		e.target = targets[n]
		p.short = p.short || e.target.Slots < demands[n].Wanted
		n++
	}
}

// idle tells that a member has a grant and no use for it.
func (e *entry) idle() bool {
	f := &e.a.facts
	return !e.a.gone && f.Grantable && f.limited() && f.Transfers.Wanted == 0 && e.a.last.Slots > 0 && len(e.a.given) > 0
}

// grant gives what is to be given: first what takes something away, since it does
// no harm, then what fits, to those first that have the least.
func (p *planning) grant() {
	order := make([]*entry, len(p.entries))
	for i := range p.entries {
		order[i] = &p.entries[i]
	}
	slices.SortStableFunc(order, func(a, b *entry) int {
		return cmp.Or(
			cmp.Compare(int64(a.held.Slots)*int64(max(1, b.a.facts.Weight)), int64(b.held.Slots)*int64(max(1, a.a.facts.Weight))),
			cmp.Compare(b.a.facts.Weight, a.a.facts.Weight),
			strings.Compare(a.name, b.name),
		)
	})
	for _, e := range order {
		switch {
		case e.asks:
			p.answer(e)
		case p.short && e.idle():
			p.give(e, Share{})
		}
	}
}

// answer decides whether a request is answered, or its answer changed.
func (p *planning) answer(e *entry) {
	last := e.a.last
	next := p.fitting(e)
	current := last.Share
	switch fresh := last.Nonce != e.a.nonce; {
	case fresh && next.Slots == 0 && len(e.a.given) == 0:
		return // it has nothing, and goes on having nothing
	case fresh, more(next, current):
	case p.short && more(current, next):
	default:
		return
	}
	p.give(e, next)
}

// more tells whether a share has anything that another has less of.
func more(a, b Share) bool {
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

// fitting is as much of the target as there is room for beside what all others may
// be running. Where more is held than there is, what it holds itself may have ended
// long ago, as a late report has it: even that much is no right to begin anew.
func (p *planning) fitting(e *entry) Share {
	s := Share{Slots: e.target.Slots}
	for _, g := range p.rules.Groups {
		n := min(e.target.Sources[g.Name], p.bound(int64(e.held.Sources[g.Name]), int64(g.Concurrency)-p.sums[g.Name]), v1alpha1.MaxSlots)
		if n > 0 {
			if s.Sources == nil {
				s.Sources = map[string]int32{}
			}
			s.Sources[g.Name] = n
		}
		// Slots that are for a group are of no use without it.
		s.Slots -= max(0, e.target.Sources[g.Name]-max(0, n))
	}
	s.Slots = max(0, min(s.Slots, p.bound(int64(e.held.Slots), p.rules.Total-p.sum)))
	return s
}

func (p *planning) bound(held, left int64) int32 {
	if p.closed {
		left = min(left, 0)
	}
	return int32(max(0, min(held+left, v1alpha1.MaxSlots)))
}

func (p *planning) give(e *entry, s Share) {
	a := e.a
	sequence := max(a.last.Sequence, a.facts.AheadGrant, a.facts.Transfers.Grant) + 1
	nonce, asked := a.nonce, a.asked
	if !e.asks {
		nonce, asked = cmp.Or(a.last.Nonce, NoRequest), p.now
	}
	g := Grant{Sequence: sequence, Share: s, Nonce: nonce, Duration: p.rules.Duration}
	a.takesTurn(g, p.now)
	a.give(g, asked.Add(margin(g.Duration)))
	p.recount(e)
	next := Next{Member: e.name, Grant: g}
	next.Possible, next.Left = a.possible(p.now)
	p.plan.Grants = append(p.plan.Grants, next)
}

// NoRequest stands for the nonce of a grant that answers none, and gives nothing.
const NoRequest = "none"

func sortedNames(m map[string]*account) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
