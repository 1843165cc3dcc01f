// Package shard decides which replica of the hub carries for which member.
package shard

import (
	"cmp"
	"slices"
)

// Member is one that is to be carried for.
type Member struct {
	Name string
	// Replica that it is assigned to; empty for none. One that is not among those
	// that are alive counts as none.
	Replica string
	// Avoid is a replica that it is not to be assigned to, where there is another;
	// empty for none.
	Avoid string
}

// Assign gives each member one of the replicas, which are alive. No replica has more
// than one member more than another, unless what members are to avoid leaves no such
// assignment. Of the members that may stay where they are, as many stay as that
// allows. The same question has the same answer, in whatever order
// members and replicas are named. Without replicas there is no answer.
func Assign(members []Member, replicas []string) map[string]string {
	replicas = slices.Compact(slices.Sorted(slices.Values(replicas)))
	if len(replicas) == 0 {
		return nil
	}
	members = slices.SortedFunc(slices.Values(members), func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	a := assignment{replicas: replicas, has: map[string][]Member{}, to: map[string]string{}}
	for _, m := range members {
		if len(replicas) == 1 {
			m.Avoid = ""
		}
		if _, alive := slices.BinarySearch(replicas, m.Replica); alive && m.Avoid != m.Replica {
			a.has[m.Replica] = append(a.has[m.Replica], m)
		} else {
			a.loose = append(a.loose, m)
		}
	}
	a.share(len(members))
	a.shed()
	a.place()
	for replica, has := range a.has {
		for _, m := range has {
			a.to[m.Name] = replica
		}
	}
	return a.to
}

type assignment struct {
	replicas []string
	// has are the members by replica, loose those that have none yet.
	has   map[string][]Member
	loose []Member
	// room is how many members each replica is to have in the end.
	room map[string]int
	to   map[string]string
}

// share gives every replica the same number of members, and what is left over to
// those that have the most already: so the most of them stay. Of those that have the
// same, the one comes last that members are to avoid.
func (a *assignment) share(members int) {
	a.room = map[string]int{}
	avoided := map[string]int{}
	for _, m := range a.loose {
		avoided[m.Avoid]++
	}
	most := slices.Clone(a.replicas)
	slices.SortStableFunc(most, func(x, y string) int {
		return cmp.Or(cmp.Compare(len(a.has[y]), len(a.has[x])), cmp.Compare(avoided[x], avoided[y]))
	})
	for i, replica := range most {
		a.room[replica] = members / len(a.replicas)
		if i < members%len(a.replicas) {
			a.room[replica]++
		}
	}
}

// shed takes from each replica what it has too much.
func (a *assignment) shed() {
	for _, replica := range a.replicas {
		if has := a.has[replica]; len(has) > a.room[replica] {
			a.loose = append(a.loose, has[a.room[replica]:]...)
			a.has[replica] = has[:a.room[replica]]
		}
	}
	slices.SortFunc(a.loose, func(x, y Member) int {
		// Those that may not go everywhere choose first.
		return cmp.Or(-cmp.Compare(min(1, len(x.Avoid)), min(1, len(y.Avoid))), cmp.Compare(x.Name, y.Name))
	})
}

// place gives those without a replica one that has room. Where only the one that a
// member is to avoid has room, another member goes there in its place.
func (a *assignment) place() {
	for _, m := range a.loose {
		to := a.roomiest(m.Avoid)
		if to == "" {
			to = a.swap(m.Avoid)
		}
		a.has[to] = append(a.has[to], m)
	}
}

// roomiest is the replica with the most room, but for one; empty for none.
func (a *assignment) roomiest(but string) (to string) {
	most := 0
	for _, replica := range a.replicas {
		if room := a.room[replica] - len(a.has[replica]); replica != but && room > most {
			to, most = replica, room
		}
	}
	return to
}

// swap makes room in another replica than the full one: it moves a member from
// there to the one that has room. Failing that, whoever is elsewhere is to avoid that
// one as well, and the emptiest of the others takes one more.
func (a *assignment) swap(full string) (to string) {
	for _, replica := range a.replicas {
		if replica == full {
			continue
		}
		has := a.has[replica]
		for i, m := range has {
			if m.Avoid != full {
				a.has[replica] = slices.Delete(slices.Clone(has), i, i+1)
				a.has[full] = append(a.has[full], m)
				return replica
			}
		}
		if to == "" || len(a.has[replica]) < len(a.has[to]) {
			to = replica
		}
	}
	return to
}
