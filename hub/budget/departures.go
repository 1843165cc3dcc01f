package budget

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/pelotech/ot-fleet/api/policy"
)

// Departure is what a cluster may be running that is no member any more: its
// MemberCluster was deleted, or another cluster has its name. No report of it will come,
// so the departure is stored for the next elected replica.
type Departure struct {
	Member, Cluster string
	// Slots that are held for Remaining.
	Slots     int32
	Remaining time.Duration
	// Claimed: only the cluster's reports say so.
	Claimed bool
}

// addDeparted keeps the account of a cluster until everything that it may be running has
// ended.
func (b *Accountant) addDeparted(member string, a *account, now time.Time) {
	a.recordEnded(b.hubRestored, now)
	a.departed, a.reportedAt = true, now
	if a.attemptLifetime() == 0 {
		// Nothing but its grant is known.
		a.facts.DesiredPolicy.AttemptTimeout = cmp.Or(b.maxAttemptTimeout, policy.Default().AttemptTimeout)
	}
	known, _ := a.knownShare(nil, b.hubRestored, now)
	if known.Slots == 0 {
		// A member may claim to be any number of clusters: such claims count once.
		a.cluster = ""
	}
	name := member + "/" + a.cluster
	if other := b.departed[name]; other != nil {
		a.addGrantsOf(other, b.hubRestored, now)
	}
	b.departed[name] = a
}

// addGrantsOf adds to a departed account what another one of the same cluster may be
// running. Each grant keeps its own end: one that grew with each departure would never
// end.
func (a *account) addGrantsOf(other *account, restored bool, now time.Time) {
	lifetime, otherLifetime := a.attemptLifetime(), other.attemptLifetime()
	add := func(g trackedGrant) {
		if g.Slots > 0 && !slices.ContainsFunc(a.grants, func(known trackedGrant) bool { return known.covers(g) }) {
			a.grants = append(slices.DeleteFunc(a.grants, g.covers), g)
		}
	}
	for _, g := range other.grants {
		g.expiresAt = g.expiresAt.Add(otherLifetime - lifetime)
		add(g)
	}
	rest := *other
	rest.grants = nil
	known, until := rest.knownShare(nil, restored, now)
	add(trackedGrant{Grant: Grant{Share: known}, expiresAt: until.Add(-lifetime), allSources: true})
	claimed, until := rest.claimedShare(nil, now)
	add(trackedGrant{Grant: Grant{Share: claimed}, expiresAt: until.Add(-lifetime), allSources: true, claimed: true})
}

// Departures returns what departed clusters hold, and what the leaving members would hold
// if they were removed now. What a cluster only claims is an entry of its own, since it
// counts for a shorter time.
func (b *Accountant) Departures(leaving []string, now time.Time) []Departure {
	var all []Departure
	add := func(a *account) {
		if b.isQuarantined(a.member) {
			return
		}
		known, until := a.knownShare(nil, b.hubRestored, now)
		if known.Slots > 0 {
			all = append(all, Departure{Member: a.member, Cluster: a.cluster, Slots: known.Slots, Remaining: until.Sub(now)})
		}
		if held, until := b.heldShare(a, nil, now); held.Slots > known.Slots {
			all = append(all, Departure{Member: a.member, Cluster: a.cluster, Slots: held.Slots, Remaining: earlierOf(until, b.excessEnd(a.member)).Sub(now), Claimed: true})
		}
	}
	for _, a := range b.departed {
		add(a)
	}
	for _, member := range leaving {
		if a := b.accounts[member]; a != nil {
			gone := *a
			gone.ended = slices.Clone(a.ended)
			gone.recordEnded(b.hubRestored, now)
			gone.departed, gone.reportedAt = true, now
			add(&gone)
		}
	}
	slices.SortFunc(all, func(a, b Departure) int {
		return cmp.Or(cmp.Compare(a.Member, b.Member), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Slots, b.Slots))
	})
	return all
}

// WriteOff forgets what the clusters may be running that were a member and are no more.
func (b *Accountant) WriteOff(member string) {
	maps.DeleteFunc(b.departed, func(_ string, a *account) bool { return a.member == member })
}

// LearnDeparture adds a stored departure, counted from now. If the member still exists,
// it counts beside the member.
func (b *Accountant) LearnDeparture(d Departure, now time.Time) {
	name := d.Member + "/" + d.Cluster
	a := b.departed[name]
	if a == nil {
		a = &account{member: d.Member, cluster: d.Cluster, departed: true, given: true, trackedSince: now}
		b.departed[name] = a
	}
	// Remaining includes the lifetime of attempts.
	g := trackedGrant{Grant: Grant{Share: Share{Slots: d.Slots}}, expiresAt: now.Add(withClockMargin(d.Remaining) - a.attemptLifetime()), allSources: true, claimed: d.Claimed}
	if !slices.ContainsFunc(a.grants, func(known trackedGrant) bool { return known.covers(g) }) {
		a.grants = append(a.grants, g)
	}
}

// TracksCluster reports whether the account of a member is of that cluster.
func (b *Accountant) TracksCluster(member, cluster string) bool {
	a := b.accounts[member]
	return a != nil && a.cluster == cluster
}
