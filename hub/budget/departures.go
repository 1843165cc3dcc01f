package budget

import (
	"cmp"
	"slices"
	"time"

	"github.com/pelotech/ot-fleet/api/policy"
)

// Departure is what a cluster may be running that is no member any more, be it that
// the member was deleted or that another cluster has its name. Nobody hears of it again,
// so that what it holds is stored, for whoever is elected next.
type Departure struct {
	Member, Cluster string
	// Slots, for as long as is Left.
	Slots     int32
	Remaining time.Duration
}

// addDeparted keeps account of a cluster until what it may be running has ended.
func (b *Accountant) addDeparted(member string, a *account, now time.Time) {
	a.departed, a.reportedAt = true, now
	if a.attemptLifetime() == 0 {
		// Nothing is known of it but its grant.
		a.facts.DesiredPolicy.AttemptTimeout = cmp.Or(b.maxAttemptTimeout, policy.Default().AttemptTimeout)
	}
	name := member + "/" + a.cluster
	if other := b.departed[name]; other != nil {
		held, until := other.heldShare(nil, b.hubRestored, now)
		a.grants = append(a.grants, trackedGrant{Grant: Grant{Share: held}, expiresAt: until.Add(-a.attemptLifetime()), allSources: true})
	}
	b.departed[name] = a
}

// Departures are those that hold anything now, and what the leaving members, which are
// still there, would hold if they went now.
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

// LearnDeparture takes in a departure that is stored. It counts as if it were of now; of a
// member that is still there, beside that.
func (b *Accountant) LearnDeparture(d Departure, now time.Time) {
	name := d.Member + "/" + d.Cluster
	a := b.departed[name]
	if a == nil {
		a = &account{cluster: d.Cluster, departed: true, trackedSince: now}
		b.departed[name] = a
	}
	// How long an attempt may last is in it.
	g := trackedGrant{Grant: Grant{Share: Share{Slots: d.Slots}}, expiresAt: now.Add(withClockMargin(d.Remaining) - a.attemptLifetime()), allSources: true}
	if !slices.ContainsFunc(a.grants, func(known trackedGrant) bool { return known.covers(g) }) {
		a.grants = append(a.grants, g)
	}
}

// TracksCluster tells that a member is taken to be that cluster by now, and no other.
func (b *Accountant) TracksCluster(member, cluster string) bool {
	a := b.accounts[member]
	return a != nil && a.cluster == cluster
}
