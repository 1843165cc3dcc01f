// Package shard assigns members to the replicas of the hub.
package shard

import (
	"cmp"
	"slices"
)

// Member is a member that some replica has to sync.
type Member struct {
	Name string
	// Replica that the member is assigned to; empty for none. A replica that is not alive
	// counts as none.
	Replica string
	// Avoid is a replica that the member must not be assigned to while there is another;
	// empty for none.
	Avoid string
}

// Assign assigns every member to a replica; replicas are those alive. Without replicas
// the result is nil.
//
// Invariant: the numbers of members per replica differ by at most one, unless Avoid
// leaves no such assignment. Of all such assignments it is one with the fewest moves. The
// result does not depend on the order of members and replicas.
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
	// assigned has the members by replica, unassigned those without one.
	assigned   map[string][]Member
	unassigned []Member
	// capacity is the number of members of each replica in the result.
	capacity map[string]int
	result   map[string]string
}

// computeCapacities divides the members evenly. Replicas with the most members get the
// remainder, so that most members stay; among equals, replicas that members avoid come
// last.
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

// unassignExcess takes from each replica the members beyond its capacity.
func (a *assignment) unassignExcess() {
	for _, replica := range a.replicas {
		if has := a.assigned[replica]; len(has) > a.capacity[replica] {
			a.unassigned = append(a.unassigned, has[a.capacity[replica]:]...)
			a.assigned[replica] = has[:a.capacity[replica]]
		}
	}
	slices.SortFunc(a.unassigned, func(x, y Member) int {
		// Members with a restriction choose first.
		return cmp.Or(-cmp.Compare(min(1, len(x.Avoid)), min(1, len(y.Avoid))), cmp.Compare(x.Name, y.Name))
	})
}

// assignRemaining assigns members to replicas with capacity left. If only the replica
// that a member avoids has any, another member goes there instead.
func (a *assignment) assignRemaining() {
	for _, m := range a.unassigned {
		to := a.mostFreeReplica(m.Avoid)
		if to == "" {
			to = a.makeRoom(m.Avoid)
		}
		a.assigned[to] = append(a.assigned[to], m)
	}
}

// mostFreeReplica returns the replica with the most capacity left, except one; empty for
// none.
func (a *assignment) mostFreeReplica(but string) (to string) {
	most := 0
	for _, replica := range a.replicas {
		if room := a.capacity[replica] - len(a.assigned[replica]); replica != but && room > most {
			to, most = replica, room
		}
	}
	return to
}

// makeRoom makes room for a member that avoids the only replica with capacity left: it
// moves a member of another replica there. If all others avoid it too, the smallest of
// the other replicas exceeds its capacity by one.
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
