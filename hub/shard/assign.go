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
	// Avoid are replicas that the member must not be assigned to, unless it avoids all.
	Avoid []string
}

func (m *Member) avoids(replica string) bool { return slices.Contains(m.Avoid, replica) }

// Assign assigns every member to a replica; replicas are those alive. Without replicas
// the result is nil.
//
// Invariant: the numbers of members per replica are as even as Avoid permits, and differ by at
// most one where it permits that. Without Avoid, it is one with the fewest moves of all even
// assignments; an assignment that is as even as can be stays. The result does not depend on the
// order of members and replicas.
func Assign(members []Member, replicas []string) map[string]string {
	replicas = slices.Compact(slices.Sorted(slices.Values(replicas)))
	if len(replicas) == 0 {
		return nil
	}
	a := assignment{replicas: replicas, assigned: map[string][]Member{}}
	var unassigned []Member
	for _, m := range slices.SortedFunc(slices.Values(members), func(a, b Member) int { return cmp.Compare(a.Name, b.Name) }) {
		if !slices.ContainsFunc(replicas, func(replica string) bool { return !m.avoids(replica) }) {
			m.Avoid = nil // it stays where it is
		}
		if _, alive := slices.BinarySearch(replicas, m.Replica); alive && !m.avoids(m.Replica) {
			a.assigned[m.Replica] = append(a.assigned[m.Replica], m)
		} else {
			unassigned = append(unassigned, m)
		}
	}
	a.place(unassigned, len(members))
	for a.shift() {
	}
	result := map[string]string{}
	for replica, has := range a.assigned {
		for _, m := range has {
			result[m.Name] = replica
		}
	}
	return result
}

type assignment struct {
	replicas []string
	assigned map[string][]Member // by replica
}

// place gives the members without a replica to those with the most room.
func (a *assignment) place(unassigned []Member, members int) {
	capacity := a.computeCapacities(unassigned, members)
	slices.SortFunc(unassigned, func(x, y Member) int {
		// Members with a restriction choose first.
		return cmp.Or(-cmp.Compare(min(1, len(x.Avoid)), min(1, len(y.Avoid))), cmp.Compare(x.Name, y.Name))
	})
	for _, m := range unassigned {
		to := ""
		for _, replica := range a.replicas {
			room := func(of string) int { return capacity[of] - len(a.assigned[of]) }
			if !m.avoids(replica) && (to == "" || room(replica) > room(to)) {
				to = replica
			}
		}
		a.assigned[to] = append(a.assigned[to], m)
	}
}

// computeCapacities divides the members evenly. Replicas with the most members get the
// remainder, so that most members stay; among equals, replicas that members avoid come
// last.
func (a *assignment) computeCapacities(unassigned []Member, members int) map[string]int {
	capacity, avoided := map[string]int{}, map[string]int{}
	for _, m := range unassigned {
		for _, replica := range m.Avoid {
			avoided[replica]++
		}
	}
	most := slices.Clone(a.replicas)
	slices.SortStableFunc(most, func(x, y string) int {
		return cmp.Or(cmp.Compare(len(a.assigned[y]), len(a.assigned[x])), cmp.Compare(avoided[x], avoided[y]))
	})
	for i, replica := range most {
		capacity[replica] = members / len(a.replicas)
		if i < members%len(a.replicas) {
			capacity[replica]++
		}
	}
	return capacity
}

// move is one member that leaves a replica.
type move struct {
	from   string
	member int // of those of from
}

// shift takes a member from a replica and gives one to another that has at least two fewer: the
// same, or another one that replicas between the two pass on. It returns false where there is
// no such pair, and then no assignment is more even (Harvey et al., Semi-matchings, 2003).
func (a *assignment) shift() bool {
	fullest := slices.Clone(a.replicas)
	slices.SortStableFunc(fullest, func(x, y string) int { return cmp.Compare(len(a.assigned[y]), len(a.assigned[x])) })
	for _, from := range fullest {
		reached := a.findMoves(from)
		to := from
		for _, replica := range a.replicas {
			if _, ok := reached[replica]; ok && len(a.assigned[replica]) < len(a.assigned[to]) {
				to = replica
			}
		}
		if len(a.assigned[from])-len(a.assigned[to]) < 2 {
			continue
		}
		for at := to; at != from; at = reached[at].from {
			leaves := reached[at]
			has := a.assigned[leaves.from]
			a.assigned[at] = append(a.assigned[at], has[leaves.member])
			a.assigned[leaves.from] = slices.Delete(has, leaves.member, leaves.member+1)
		}
		return true
	}
	return false
}

// findMoves returns the last move of the shortest way to each replica that can get a member
// when from gives one away.
func (a *assignment) findMoves(from string) map[string]move {
	reached := map[string]move{}
	for next := []string{from}; len(next) > 0; next = next[1:] {
		has := a.assigned[next[0]]
		for _, to := range a.replicas {
			if _, ok := reached[to]; ok || to == from {
				continue
			}
			for i := len(has) - 1; i >= 0; i-- {
				if !has[i].avoids(to) {
					reached[to] = move{next[0], i}
					next = append(next, to)
					break
				}
			}
		}
	}
	return reached
}
