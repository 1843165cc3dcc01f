package budget

import (
	"cmp"
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
}

// addDeparted keeps the account of a cluster until everything that it may be running has
// ended.
func (b *Accountant) addDeparted(member string, a *account, now time.Time) {
	a.departed, a.reportedAt = true, now
	if a.attemptLifetime() == 0 {
		// Nothing but its grant is known.
		a.facts.DesiredPolicy.AttemptTimeout = cmp.Or(b.maxAttemptTimeout, policy.Default().AttemptTimeout)
	}
	name := member + "/" + a.cluster
	if other := b.departed[name]; other != nil {
		held, until := other.heldShare(nil, b.hubRestored, now)
		a.grants = append(a.grants, trackedGrant{Grant: Grant{Share: held}, expiresAt: until.Add(-a.attemptLifetime()), allSources: true})
	}
	b.departed[name] = a
}

// Departures returns what departed clusters hold, and what the leaving members would hold
// if they were removed now.
func (b *Accountant) Departures(leaving []string, now time.Time) []Departure {
	var all []Departure
	add := func(member string, a *account) {
		if held, until := a.heldShare(nil, b.hubRestored, now); held.Slots > 0 {
			all = append(all, Departure{Member: member, Cluster: a.cluster, Slots: held.Slots, Remaining: until.Sub(now)})
		}
	}
	for name, a := range b.departed {
		add(name[:len(name)-len(a.cluster)-1], a)
	}
	for _, member := range leaving {
		if a := b.accounts[member]; a != nil {
			gone := *a
			gone.departed, gone.reportedAt = true, now
			add(member, &gone)
		}
	}
	slices.SortFunc(all, func(a, b Departure) int {
		return cmp.Or(cmp.Compare(a.Member, b.Member), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Slots, b.Slots))
	})
	return all
}

// LearnDeparture adds a stored departure, counted from now. If the member still exists,
// it counts beside the member.
func (b *Accountant) LearnDeparture(d Departure, now time.Time) {
	name := d.Member + "/" + d.Cluster
	a := b.departed[name]
	if a == nil {
		a = &account{cluster: d.Cluster, departed: true, trackedSince: now}
		b.departed[name] = a
	}
	// Remaining includes the lifetime of attempts.
	g := trackedGrant{Grant: Grant{Share: Share{Slots: d.Slots}}, expiresAt: now.Add(withClockMargin(d.Remaining) - a.attemptLifetime()), allSources: true}
	if !slices.ContainsFunc(a.grants, func(known trackedGrant) bool { return known.covers(g) }) {
		a.grants = append(a.grants, g)
	}
}

// TracksCluster reports whether the account of a member is of that cluster.
func (b *Accountant) TracksCluster(member, cluster string) bool {
	a := b.accounts[member]
	return a != nil && a.cluster == cluster
}
