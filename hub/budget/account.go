package budget

import (
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// settle is how long an attempt that has timed out may take to end, where it may
	// take no less until it times out.
	settle = time.Minute
	// longest is how long any grant may hold.
	longest = 24 * time.Hour
	// mostGiven bounds how many grants of one member are told apart.
	mostGiven = 8
)

// Grant is a share for a while.
type Grant struct {
	Sequence int64
	Share
	// Nonce of the request that it answers.
	Nonce    string
	Duration time.Duration
}

// Facts are what is known of a member.
type Facts struct {
	// Cluster that the report is of, its sequence, and the process that wrote it; zero
	// where there is none.
	Cluster string
	Report  int64
	Boot    string
	// Slots of the ledger, and what the member says of its transfers, of one state.
	Slots     int32
	Transfers *v1alpha1.ReportedTransfers
	// InForce is the policy by the report; nil where it tells none.
	InForce *Bounds
	// Planned is that of the plan on the hub; nil for none. Acknowledged: the report
	// says that the ledger was written under it.
	Planned      *Bounds
	Acknowledged bool
	// Superseded is the most that plans before that allow which were not acknowledged
	// either; nil for none.
	Superseded *Bounds
	// Desired is what the fleet's policy asks for now.
	Desired Bounds
	// SameSources: the policy by the report has the fleet's groups as they are now.
	SameSources bool
	// Learning: what the hub has of the member may be older than what that has shown.
	Learning bool
	// Unread: this process has not read the report in the member itself.
	Unread bool
	// Unguarded: what another process has decided of its grants may still be written.
	Unguarded bool
	// Grantable: a grant may be written for it.
	Grantable bool
	// Dark: it has not been heard of for longer than it should. That is for people: it
	// is counted by what it may be running.
	Dark   bool
	Weight int32
	// AheadGrant is the sequence of a grant in the member that is newer than the hub's.
	AheadGrant int64
}

func (f *Facts) limited() bool { return f.Transfers != nil && f.Transfers.Limited }

// given is a grant that may be in force, or under which something may run yet.
type given struct {
	Grant
	// ends is when it has ended in the member, by the hub's clock.
	ends time.Time
	// every: nobody knows which sources it is for.
	every bool
}

// covers tells that another one counts for no more, and no longer.
func (g given) covers(o given) bool {
	return g.Slots >= o.Slots && !g.ends.Before(o.ends) && (g.every || !o.every && len(o.Sources) == 0)
}

// account is what the book has of one member, or of a cluster that was one.
type account struct {
	// cluster that it is of, once that is known.
	cluster  string
	facts    Facts
	received time.Time // the newest report
	asked    time.Time // the request of that nonce
	nonce    string
	given    []given
	// last is the grant that was made last, kept for its sequence and nonce.
	last Grant
	// pending is the most that plans allow which may be in force by now and are not
	// acknowledged; nil for none.
	pending *Bounds
	// safe is the share without a grant that plans may give it, and high the most that
	// one may have given it that is not acknowledged to be gone.
	safe, high int32
	gone       bool
	// since is when the book began to keep it, and horizon when all grants have ended
	// that others may have given before.
	since, horizon time.Time
	// missing: there was no report of it then.
	missing bool
	// learned: a grant of it was stored when the book was begun.
	learned bool
	turn
}

// see takes in what is known now.
func (a *account) see(f Facts, now time.Time) {
	newer := f.Report > a.facts.Report
	if !newer && f.Report < a.facts.Report {
		// An older copy says nothing of what runs; the rest may be new.
		f.Report, f.Boot, f.Slots, f.Transfers = a.facts.Report, a.facts.Boot, a.facts.Slots, a.facts.Transfers
		f.InForce, f.SameSources, f.Acknowledged = a.facts.InForce, a.facts.SameSources, false
	}
	a.facts = f
	if f.Cluster != "" {
		a.cluster = f.Cluster
	}
	if a.since.IsZero() {
		a.since, a.missing = now, f.Report == 0
	}
	switch {
	case f.Planned == nil:
	case f.Acknowledged:
		a.pending = nil
	default:
		a.pending = a.pending.Or(*f.Planned)
		if f.Superseded != nil {
			a.pending = a.pending.Or(*f.Superseded)
		}
	}
	if f.Planned != nil {
		a.high = max(a.high, f.Planned.Safe)
		if a.high == f.Planned.Safe && a.safe < a.high {
			a.safe = a.high // of another replica
		}
		if f.Acknowledged && f.Planned.Safe == a.safe {
			// Whoever makes plans has caught up, and so has the member.
			a.high = a.safe
		}
	}
	if newer {
		a.received = now
		a.report(now)
	}
}

// report takes in a report that is newer than those before.
func (a *account) report(now time.Time) {
	f := &a.facts
	t := f.Transfers
	if t == nil {
		return
	}
	// What another process asked for gives this one nothing, and that one is gone.
	a.begins()
	a.given = slices.DeleteFunc(a.given, func(g given) bool {
		return g.Sequence < t.Grant || g.Sequence == t.Grant && t.Slots == 0 || f.Boot != "" && g.Nonce != "" && !ofBoot(g.Nonce, f.Boot)
	})
	if t.Slots > 0 && t.Grant > a.last.Sequence {
		// A hub that was restored from a backup does not know it.
		a.given = append(a.given, given{
			Grant: Grant{Sequence: t.Grant, Share: Share{Slots: t.Slots}, Nonce: f.Boot + "/", Duration: longest}, ends: now.Add(longest), every: true,
		})
	}
	if t.Nonce != a.nonce {
		a.nonce, a.asked = t.Nonce, now
	}
}

func ofBoot(nonce, boot string) bool { return strings.HasPrefix(nonce, boot+"/") }

// lasting is how long an attempt may run on after it was last seen to be allowed.
func (a *account) lasting() time.Duration {
	most := a.facts.Desired.AttemptTimeout
	for _, b := range []*Bounds{a.facts.InForce, a.facts.Planned, a.pending} {
		if b != nil {
			most = max(most, b.AttemptTimeout)
		}
	}
	return most + most/100 + min(most, settle)
}

// whole is the concurrency of a member that goes by no grants, or may not yet, or
// may be given any.
func (a *account) whole() int32 {
	f := &a.facts
	most := int32(0)
	if f.Report > 0 && !f.limited() {
		if f.InForce != nil {
			most = f.InForce.Concurrency
		}
		if f.Acknowledged && f.Planned != nil {
			most = max(most, f.Planned.Concurrency)
		}
	}
	if a.pending != nil {
		most = max(most, a.pending.Concurrency)
	}
	if f.Unguarded {
		most = max(most, f.Desired.Concurrency)
		for _, b := range []*Bounds{f.InForce, f.Planned} {
			if b != nil {
				most = max(most, b.Concurrency)
			}
		}
	}
	return most
}

// unknown is what it may be running that nobody can tell of, and until when: it was
// planned for, and no report says what has come of that, nor may one that came late. A
// hub that was restored from a backup has reports and grants that say nothing of what
// came after it.
func (a *account) unknown(restored bool) (slots int32, until time.Time) {
	f := &a.facts
	if read := !f.Unread || !restored && !a.missing; f.Planned == nil || f.Report > 0 && read {
		return 0, until
	}
	until = a.horizon
	if restored || until.IsZero() {
		until = later(until, a.since.Add(longest))
	}
	return f.Planned.Concurrency, until
}

// safeNow is the share that it may use without a grant.
func (a *account) safeNow() int32 {
	most := a.high
	if a.facts.limited() {
		most = max(most, a.facts.Transfers.Safe)
	}
	if a.pending != nil {
		most = max(most, a.pending.Safe)
	}
	return most
}

// held is what a member may be running, and from which groups. until is when it is
// less if nothing is heard; zero for never.
func (a *account) held(groups []Group, restored bool, now time.Time) (h Share, until time.Time) {
	lasting := a.lasting()
	every := int32(0) // that may all be of one group
	upTo := func(t time.Time) bool {
		if !now.Before(t) {
			return false
		}
		until = later(until, t)
		return true
	}
	for _, g := range a.given {
		if upTo(g.ends.Add(lasting)) {
			h = h.or(g.Share)
			if g.every {
				every = max(every, g.Slots)
			}
		}
	}
	f := &a.facts
	if slots, ends := a.unknown(restored); slots > 0 && upTo(ends.Add(lasting)) {
		h.Slots = max(h.Slots, slots)
		every = h.Slots
	}
	if f.Report > 0 && (f.Slots > 0 && upTo(a.received.Add(lasting))) {
		running := Share{Slots: f.Slots}
		if f.Transfers != nil && len(groups) > 0 {
			running.Sources = make(map[string]int32, len(f.Transfers.Sources))
			for _, s := range f.Transfers.Sources {
				running.Sources[s.Name] = s.Running
			}
		}
		h = h.or(running)
	}
	// What it may use without a grant it goes on to use; of a cluster that is no member
	// any more, what it had begun by then counts.
	whole, safe := a.whole(), a.safeNow()
	switch {
	case !a.gone:
		if whole > 0 {
			until = time.Time{}
		}
		h.Slots = max(h.Slots, whole, safe)
	case max(whole, safe) > 0 && upTo(a.received.Add(lasting)):
		h.Slots = max(h.Slots, whole, safe)
	}
	if a.gone || f.Unguarded || f.Report > 0 && (!f.limited() || !f.SameSources) || a.pending != nil && !a.pending.Limited {
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

// give notes a grant before it is written.
func (a *account) give(g Grant, ends time.Time) {
	a.last = g
	a.given = append(a.given, given{Grant: g, ends: ends})
	if len(a.given) <= mostGiven {
		return
	}
	// Of many, the first two are taken for one that is as much, and as long, as both.
	first, second := a.given[0], a.given[1]
	one := given{Grant: second.Grant, ends: later(first.ends, second.ends), every: first.every || second.every}
	one.Share = first.Share.or(second.Share)
	if first.Nonce != second.Nonce {
		one.Nonce = ""
	}
	a.given = append([]given{one}, a.given[2:]...)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// possible is the most of all grants that may be in force, and how long yet: what
// the next elected replica must know beside the newest one.
func (a *account) possible(now time.Time) (s Share, left time.Duration) {
	for _, g := range a.given {
		s = s.or(g.Share)
		left = max(left, g.ends.Sub(now))
	}
	return s, left
}
