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
	a := assignment{replicas: replicas, assigned: map[string][]Member{}, result: map[string]string{}}
	for _, m := range members {
		if len(replicas) == 1 {
			m.Avoid = ""
		}
		if _, alive := slices.BinarySearch(replicas, m.Replica); alive && m.Avoid != m.Replica {
			a.assigned[m.Replica] = append(a.assigned[m.Replica], m)
		} else {
			a.unassigned = append(a.unassigned, m)
		}
	}
	a.computeCapacities(len(members))
	a.unassignExcess()
	a.assignRemaining()
	for replica, has := range a.assigned {
		for _, m := range has {
			a.result[m.Name] = replica
		}
	}
	return a.result
}

type assignment struct {
	replicas []string
	// assigned are the members by replica, loose those that have none yet.
	assigned   map[string][]Member
	unassigned []Member
	// capacity is how many members each replica is to have in the end.
	capacity map[string]int
	result   map[string]string
}

// computeCapacities gives every replica the same number of members, and what is left over to
// those that have the most already: so the most of them stay. Of those that have the
// same, the one comes last that members are to avoid.
func (a *assignment) computeCapacities(members int) {
	a.capacity = map[string]int{}
	avoided := map[string]int{}
	for _, m := range a.unassigned {
		avoided[m.Avoid]++
	}
	most := slices.Clone(a.replicas)
	slices.SortStableFunc(most, func(x, y string) int {
		return cmp.Or(cmp.Compare(len(a.assigned[y]), len(a.assigned[x])), cmp.Compare(avoided[x], avoided[y]))
	})
	for i, replica := range most {
		a.capacity[replica] = members / len(a.replicas)
		if i < members%len(a.replicas) {
			a.capacity[replica]++
		}
	}
}

// unassignExcess takes from each replica what it has too much.
func (a *assignment) unassignExcess() {
	for _, replica := range a.replicas {
		if has := a.assigned[replica]; len(has) > a.capacity[replica] {
			a.unassigned = append(a.unassigned, has[a.capacity[replica]:]...)
			a.assigned[replica] = has[:a.capacity[replica]]
		}
	}
	slices.SortFunc(a.unassigned, func(x, y Member) int {
		// Those that may not go everywhere choose first.
		return cmp.Or(-cmp.Compare(min(1, len(x.Avoid)), min(1, len(y.Avoid))), cmp.Compare(x.Name, y.Name))
	})
}

// assignRemaining gives those without a replica one that has room. Where only the one that a
// member is to avoid has room, another member goes there in its place.
func (a *assignment) assignRemaining() {
	for _, m := range a.unassigned {
		to := a.mostFreeReplica(m.Avoid)
		if to == "" {
			to = a.makeRoom(m.Avoid)
		}
		a.assigned[to] = append(a.assigned[to], m)
	}
}

// mostFreeReplica is the replica with the most room, but for one; empty for none.
func (a *assignment) mostFreeReplica(but string) (to string) {
	most := 0
	for _, replica := range a.replicas {
		if room := a.capacity[replica] - len(a.assigned[replica]); replica != but && room > most {
			to, most = replica, room
		}
	}
	return to
}

// makeRoom makes room in another replica than the full one: it moves a member from
// there to the one that has room. Failing that, whoever is elsewhere is to avoid that
// one as well, and the emptiest of the others takes one more.
func (a *assignment) makeRoom(full string) (to string) {
	for _, replica := range a.replicas {
		if replica == full {
			continue
		}
		has := a.assigned[replica]
		for i, m := range has {
			if m.Avoid != full {
				a.assigned[replica] = slices.Delete(slices.Clone(has), i, i+1)
				a.assigned[full] = append(a.assigned[full], m)
				return replica
			}
		}
		if to == "" || len(a.assigned[replica]) < len(a.assigned[to]) {
			to = replica
		}
	}
	return to
}
