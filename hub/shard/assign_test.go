package shard

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAssign(t *testing.T) {
	tests := map[string]struct {
		members  []Member
		replicas []string
		want     map[string]string
	}{
		"no replica is alive": {members: []Member{{Name: "a", Replica: "x"}}},
		"the first members": {
			members: []Member{{Name: "b"}, {Name: "a"}, {Name: "c"}}, replicas: []string{"y", "x"},
			want: map[string]string{"a": "x", "b": "x", "c": "y"},
		},
		"one that dies gives its members to the others": {
			members:  []Member{{Name: "a", Replica: "x"}, {Name: "b", Replica: "y"}, {Name: "c", Replica: "z"}, {Name: "d", Replica: "z"}},
			replicas: []string{"x", "y"},
			want:     map[string]string{"a": "x", "b": "y", "c": "x", "d": "y"},
		},
		"one that comes gets its part": {
			members:  []Member{{Name: "a", Replica: "x"}, {Name: "b", Replica: "x"}, {Name: "c", Replica: "x"}, {Name: "d", Replica: "x"}},
			replicas: []string{"x", "y"},
			want:     map[string]string{"a": "x", "b": "x", "c": "y", "d": "y"},
		},
		"one is to avoid where it is": {
			members:  []Member{{Name: "a", Replica: "x", Avoid: []string{"x"}}, {Name: "b", Replica: "x"}, {Name: "c", Replica: "y"}},
			replicas: []string{"x", "y"},
			want:     map[string]string{"a": "y", "b": "x", "c": "y"},
		},
		"another takes its place where that is full": {
			members:  []Member{{Name: "a", Replica: "x", Avoid: []string{"x"}}, {Name: "b", Replica: "y"}},
			replicas: []string{"x", "y"},
			want:     map[string]string{"a": "y", "b": "x"},
		},
		"the smaller replica takes one more if no member can take its place": {
			members: []Member{
				{Name: "a", Replica: "x"}, {Name: "b", Replica: "x", Avoid: []string{"x"}}, {Name: "c", Replica: "x", Avoid: []string{"x"}},
				{Name: "d", Replica: "x", Avoid: []string{"x"}}, {Name: "e", Replica: "x", Avoid: []string{"x"}},
			},
			replicas: []string{"x", "y", "z"},
			want:     map[string]string{"a": "x", "b": "y", "c": "y", "d": "z", "e": "z"},
		},
		"there is nowhere else": {
			members: []Member{{Name: "a", Replica: "x", Avoid: []string{"x"}}}, replicas: []string{"x"},
			want: map[string]string{"a": "x"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, Assign(test.members, test.replicas))
		})
	}
}

// generateMembers generates fleets small enough to try all assignments.
func generateMembers(avoid bool) *rapid.Generator[[]Member] {
	return rapid.Custom(func(t *rapid.T) []Member {
		members := make([]Member, rapid.IntRange(0, 7).Draw(t, "members"))
		for i := range members {
			members[i] = Member{Name: fmt.Sprint("m", i), Replica: rapid.SampledFrom([]string{"", "a", "b", "c", "dead"}).Draw(t, "replica")}
			if avoid {
				members[i].Avoid = rapid.SampledFrom([][]string{nil, nil, nil, {members[i].Replica}, {"a"}, {"b"}, {"a", "c"}, {"c", "b"}, {"a", "b", "c"}}).Draw(t, "avoids")
			}
		}
		return members
	})
}

func generateReplicas(t *rapid.T) []string {
	return []string{"a", "b", "c"}[:rapid.IntRange(1, 3).Draw(t, "replicas")]
}

// computeSpread is the difference between the largest and the smallest replica.
func computeSpread(assigned map[string]string, replicas []string) int {
	counts := map[string]int{}
	for _, replica := range assigned {
		counts[replica]++
	}
	least, most := len(assigned), 0
	for _, replica := range replicas {
		least, most = min(least, counts[replica]), max(most, counts[replica])
	}
	return max(0, most-least)
}

func avoidsAll(m Member, replicas []string) bool {
	return !slices.ContainsFunc(replicas, func(replica string) bool { return !m.avoids(replica) })
}

// countMoves counts the members that leave a live replica.
func countMoves(members []Member, assigned map[string]string, replicas []string) (n int) {
	for _, m := range members {
		if slices.Contains(replicas, m.Replica) && assigned[m.Name] != m.Replica {
			n++
		}
	}
	return n
}

// forEachAssignment visits every assignment that no member avoids.
func forEachAssignment(members []Member, replicas []string, look func(assigned map[string]string)) {
	assigned := map[string]string{}
	var try func(i int)
	try = func(i int) {
		if i == len(members) {
			look(assigned)
			return
		}
		for _, replica := range replicas {
			if members[i].avoids(replica) && !avoidsAll(members[i], replicas) {
				continue
			}
			assigned[members[i].Name] = replica
			try(i + 1)
		}
	}
	try(0)
}

// minMoves is the fewest moves of all even assignments.
func minMoves(members []Member, replicas []string) int {
	best := len(members)
	forEachAssignment(members, replicas, func(assigned map[string]string) {
		if computeSpread(assigned, replicas) <= 1 {
			best = min(best, countMoves(members, assigned, replicas))
		}
	})
	return best
}

// minSpread is the smallest spread of all assignments that no member avoids.
func minSpread(members []Member, replicas []string) int {
	best := len(members)
	forEachAssignment(members, replicas, func(assigned map[string]string) { best = min(best, computeSpread(assigned, replicas)) })
	return best
}

func TestAssignMovesAsFewAsPossible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, replicas := generateMembers(false).Draw(t, "fleet"), generateReplicas(t)
		assigned := Assign(members, replicas)
		require.Len(t, assigned, len(members), "everybody has a replica")
		require.LessOrEqual(t, computeSpread(assigned, replicas), 1)
		require.Equal(t, minMoves(members, replicas), countMoves(members, assigned, replicas), "%v", assigned)
	})
}

func TestAssignIgnoresOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, replicas := generateMembers(true).Draw(t, "fleet"), generateReplicas(t)
		assigned := Assign(members, replicas)
		require.Equal(t, assigned, Assign(rapid.Permutation(members).Draw(t, "order"), rapid.Permutation(replicas).Draw(t, "replicas in order")))
	})
}

func TestAssignIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, replicas := generateMembers(true).Draw(t, "fleet"), generateReplicas(t)
		assigned := Assign(members, replicas)
		for i := range members {
			members[i].Replica, members[i].Avoid = assigned[members[i].Name], nil
		}
		again := Assign(members, replicas)
		if computeSpread(assigned, replicas) > 1 { // what members avoid left no even assignment
			require.LessOrEqual(t, computeSpread(again, replicas), 1)
			return
		}
		require.Equal(t, assigned, again)
	})
}

// A replica that nearly all members avoid has few. That does not shuffle the others: one more
// member that avoids it, or one that is gone, moves two at the most.
func TestAssignDoesNotShuffle(t *testing.T) {
	replicas, members := []string{"a", "b", "c"}, make([]Member, 60)
	for i := range members {
		members[i] = Member{Name: fmt.Sprintf("m%02d", i), Replica: replicas[i%3]}
	}
	step := func(what string) {
		assigned := Assign(members, replicas)
		require.LessOrEqual(t, countMoves(members, assigned, replicas), 2, what)
		for i := range members {
			members[i].Replica = assigned[members[i].Name]
		}
	}
	for { // b reaches m00 and m01 only
		i := slices.IndexFunc(members[2:], func(m Member) bool { return m.Replica == "b" })
		if i < 0 {
			break
		}
		members[2+i].Avoid = []string{"b"}
		step("member " + members[2+i].Name + " leaves")
	}
	for len(members) > 40 {
		members = members[:len(members)-1]
		step("a member is gone")
	}
}

// What members go on to avoid does not move them again.
func TestAssignSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, replicas := generateMembers(true).Draw(t, "fleet"), generateReplicas(t)
		assigned := Assign(members, replicas)
		for i := range members {
			members[i].Replica = assigned[members[i].Name]
		}
		require.Equal(t, assigned, Assign(members, replicas))
	})
}

func TestAssignAvoidsReplicas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, replicas := generateMembers(true).Draw(t, "fleet"), generateReplicas(t)
		assigned := Assign(members, replicas)
		require.Len(t, assigned, len(members))
		for _, m := range members {
			if !avoidsAll(m, replicas) {
				require.NotContains(t, m.Avoid, assigned[m.Name], m.Name)
			}
		}
		require.Equal(t, minSpread(members, replicas), computeSpread(assigned, replicas), "%v", assigned)
	})
}
