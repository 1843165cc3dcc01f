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
	Slots int32
	Left  time.Duration
}

// depart keeps account of a cluster until what it may be running has ended.
func (b *Book) depart(member string, a *account, now time.Time) {
	a.gone, a.received = true, now
	if a.lasting() == 0 {
		// Nothing is known of it but its grant.
		a.facts.Desired.AttemptTimeout = cmp.Or(b.attempts, policy.Default().AttemptTimeout)
	}
	name := member + "/" + a.cluster
	if other := b.departed[name]; other != nil {
		held, until := other.held(nil, b.restored, now)
		a.given = append(a.given, given{Grant: Grant{Share: held}, ends: until.Add(-a.lasting()), every: true})
	}
	b.departed[name] = a
}

// Departures are those that hold anything now, and what the leaving members, which are
// still there, would hold if they went now.
func (b *Book) Departures(leaving []string, now time.Time) []Departure {
	var all []Departure
	add := func(member string, a *account) {
		if held, until := a.held(nil, b.restored, now); held.Slots > 0 {
			all = append(all, Departure{Member: member, Cluster: a.cluster, Slots: held.Slots, Left: until.Sub(now)})
		}
	}
	for name, a := range b.departed {
		add(name[:len(name)-len(a.cluster)-1], a)
	}
	for _, member := range leaving {
		if a := b.accounts[member]; a != nil {
			gone := *a
			gone.gone, gone.received = true, now
			add(member, &gone)
		}
	}
	slices.SortFunc(all, func(a, b Departure) int {
		return cmp.Or(cmp.Compare(a.Member, b.Member), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Slots, b.Slots))
	})
	return all
}

// Recall takes in a departure that is stored. It counts as if it were of now; of a
// member that is still there, beside that.
func (b *Book) Recall(d Departure, now time.Time) {
	name := d.Member + "/" + d.Cluster
	a := b.departed[name]
	if a == nil {
		a = &account{cluster: d.Cluster, gone: true, since: now}
		b.departed[name] = a
	}
	// How long an attempt may last is in it.
	g := given{Grant: Grant{Share: Share{Slots: d.Slots}}, ends: now.Add(margin(d.Left) - a.lasting()), every: true}
	if !slices.ContainsFunc(a.given, func(known given) bool { return known.covers(g) }) {
		a.given = append(a.given, g)
	}
}

// Parted tells that a member is taken to be that cluster by now, and no other.
func (b *Book) Parted(member, cluster string) bool {
	a := b.accounts[member]
	return a != nil && a.cluster == cluster
}
