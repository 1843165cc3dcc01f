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
		"nobody is alive": {members: []Member{{Name: "a", Replica: "x"}}},
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
			members:  []Member{{Name: "a", Replica: "x", Avoid: "x"}, {Name: "b", Replica: "x"}, {Name: "c", Replica: "y"}},
			replicas: []string{"x", "y"},
			want:     map[string]string{"a": "y", "b": "x", "c": "y"},
		},
		"another takes its place where that is full": {
			members:  []Member{{Name: "a", Replica: "x", Avoid: "x"}, {Name: "b", Replica: "y"}},
			replicas: []string{"x", "y"},
			want:     map[string]string{"a": "y", "b": "x"},
		},
		"the emptier one takes one more where nobody can take its place": {
			members: []Member{
				{Name: "a", Replica: "x"}, {Name: "b", Replica: "x", Avoid: "x"}, {Name: "c", Replica: "x", Avoid: "x"},
				{Name: "d", Replica: "x", Avoid: "x"}, {Name: "e", Replica: "x", Avoid: "x"},
			},
			replicas: []string{"x", "y", "z"},
			want:     map[string]string{"a": "x", "b": "y", "c": "y", "d": "z", "e": "z"},
		},
		"there is nowhere else": {
			members: []Member{{Name: "a", Replica: "x", Avoid: "x"}}, replicas: []string{"x"},
			want: map[string]string{"a": "x"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, Assign(test.members, test.replicas))
		})
	}
}

// fleets of a size at which all assignments can be tried.
func fleets(avoid bool) *rapid.Generator[[]Member] {
	return rapid.Custom(func(t *rapid.T) []Member {
		members := make([]Member, rapid.IntRange(0, 7).Draw(t, "members"))
		for i := range members {
			members[i] = Member{Name: fmt.Sprint("m", i), Replica: rapid.SampledFrom([]string{"", "a", "b", "c", "dead"}).Draw(t, "replica")}
			if avoid && rapid.IntRange(0, 3).Draw(t, "avoids") == 0 {
				members[i].Avoid = members[i].Replica
			}
		}
		return members
	})
}

func alive(t *rapid.T) []string {
	return []string{"a", "b", "c"}[:rapid.IntRange(1, 3).Draw(t, "replicas")]
}

// spread is how many members the fullest replica has more than the emptiest.
func spread(assigned map[string]string, replicas []string) int {
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

// moved are the members that leave a replica that is alive.
func moved(members []Member, assigned map[string]string, replicas []string) (n int) {
	for _, m := range members {
		if slices.Contains(replicas, m.Replica) && assigned[m.Name] != m.Replica {
			n++
		}
	}
	return n
}

// tryAll looks at every assignment in which no member is where it is not to be.
func tryAll(members []Member, replicas []string, look func(assigned map[string]string)) {
	assigned := map[string]string{}
	var try func(i int)
	try = func(i int) {
		if i == len(members) {
			look(assigned)
			return
		}
		for _, replica := range replicas {
			if replica == members[i].Avoid && len(replicas) > 1 {
				continue
			}
			assigned[members[i].Name] = replica
			try(i + 1)
		}
	}
	try(0)
}

// fewest moves of all assignments that are even enough.
func fewest(members []Member, replicas []string) int {
	best := len(members)
	tryAll(members, replicas, func(assigned map[string]string) {
		if spread(assigned, replicas) <= 1 {
			best = min(best, moved(members, assigned, replicas))
		}
	})
	return best
}

// evenest is the least spread that any assignment has in which no member is where it
// is not to be.
func evenest(members []Member, replicas []string) int {
	best := len(members)
	tryAll(members, replicas, func(assigned map[string]string) { best = min(best, spread(assigned, replicas)) })
	return best
}

func TestAssignMovesNoMoreThanItMust(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, replicas := fleets(false).Draw(t, "fleet"), alive(t)
		assigned := Assign(members, replicas)
		require.Len(t, assigned, len(members), "everybody has a replica")
		require.LessOrEqual(t, spread(assigned, replicas), 1)
		require.Equal(t, fewest(members, replicas), moved(members, assigned, replicas), "%v", assigned)
	})
}

func TestAssignIsTheSameInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, replicas := fleets(true).Draw(t, "fleet"), alive(t)
		assigned := Assign(members, replicas)
		require.Equal(t, assigned, Assign(rapid.Permutation(members).Draw(t, "order"), rapid.Permutation(replicas).Draw(t, "replicas in order")))
	})
}

func TestAssignAgainMovesNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, replicas := fleets(true).Draw(t, "fleet"), alive(t)
		assigned := Assign(members, replicas)
		for i := range members {
			members[i].Replica, members[i].Avoid = assigned[members[i].Name], ""
		}
		again := Assign(members, replicas)
		if spread(assigned, replicas) > 1 { // they had something to avoid that left no even assignment
			require.LessOrEqual(t, spread(again, replicas), 1)
			return
		}
		require.Equal(t, assigned, again)
	})
}

func TestAssignAvoids(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, replicas := fleets(true).Draw(t, "fleet"), alive(t)
		assigned := Assign(members, replicas)
		require.Len(t, assigned, len(members))
		for _, m := range members {
			if len(replicas) > 1 && m.Avoid != "" {
				require.NotEqual(t, m.Avoid, assigned[m.Name], m.Name)
			}
		}
		require.Equal(t, evenest(members, replicas) <= 1, spread(assigned, replicas) <= 1, "%v", assigned)
	})
}
