package budget

import (
	"fmt"
	"math/rand"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestTargets(t *testing.T) {
	for name, tt := range map[string]struct {
		total   int64
		groups  []Group
		demands []Demand
		want    []Share
	}{
		"no members":            {total: 5, want: []Share{}},
		"enough for all":        {total: 9, demands: []Demand{{Member: "a", Wanted: 2}, {Member: "b", Wanted: 5}}, want: []Share{{Slots: 2}, {Slots: 5}}},
		"even":                  {total: 4, demands: []Demand{{Member: "a", Wanted: 9}, {Member: "b", Wanted: 9}}, want: []Share{{Slots: 2}, {Slots: 2}}},
		"what one leaves":       {total: 6, demands: []Demand{{Member: "a", Wanted: 1}, {Member: "b", Wanted: 9}}, want: []Share{{Slots: 1}, {Slots: 5}}},
		"weighted":              {total: 8, demands: []Demand{{Member: "a", Wanted: 9, Weight: 3}, {Member: "b", Wanted: 9, Weight: 1}}, want: []Share{{Slots: 6}, {Slots: 2}}},
		"one for each":          {total: 2, demands: []Demand{{Member: "a", Wanted: 9, Weight: 100}, {Member: "b", Wanted: 9, Weight: 1}}, want: []Share{{Slots: 1}, {Slots: 1}}},
		"not enough for all":    {total: 1, demands: []Demand{{Member: "a", Wanted: 9, Weight: 1}, {Member: "b", Wanted: 9, Weight: 2}}, want: []Share{{}, {Slots: 1}}},
		"floors count":          {total: 4, demands: []Demand{{Member: "a", Floor: 2}, {Member: "b", Wanted: 9}}, want: []Share{{Slots: 2}, {Slots: 2}}},
		"floors beyond total":   {total: 1, demands: []Demand{{Member: "a", Floor: 2}, {Member: "b", Wanted: 9}}, want: []Share{{Slots: 2}, {}}},
		"a floor that is spare": {total: 2, groups: []Group{{"eu", 5}}, demands: []Demand{{Member: "a", Floor: 2, Wanted: 2, Sources: map[string]int32{"eu": 2}}}, want: []Share{{Slots: 2, Sources: map[string]int32{"eu": 2}}}},
		"a group": {total: 9, groups: []Group{{"eu", 3}}, demands: []Demand{
			{Member: "a", Wanted: 4, Sources: map[string]int32{"eu": 4}}, {Member: "b", Wanted: 4, Sources: map[string]int32{"eu": 2}}},
			want: []Share{{Slots: 3, Sources: map[string]int32{"eu": 3}}, {Slots: 2}}},
		"a group in the place of another transfer": {total: 9, groups: []Group{{"eu", 1}}, demands: []Demand{{Member: "a", Wanted: 5, Most: 4, Sources: map[string]int32{"eu": 1}}}, want: []Share{{Slots: 4, Sources: map[string]int32{"eu": 1}}}},
		"a full group takes none":                  {total: 9, groups: []Group{{"eu", 0}}, demands: []Demand{{Member: "a", Wanted: 5, Most: 4, Sources: map[string]int32{"eu": 1}}}, want: []Share{{Slots: 4}}},
		"a group that is not there":                {total: 9, demands: []Demand{{Member: "a", Wanted: 4, Sources: map[string]int32{"gone": 4}}}, want: []Share{{}}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, ComputeTargets(tt.total, tt.groups, tt.demands))
		})
	}
}

func anyDemands(t *rapid.T, groups []Group) []Demand {
	demands := make([]Demand, rapid.IntRange(0, 8).Draw(t, "members"))
	for i := range demands {
		d := Demand{Member: fmt.Sprintf("m%d", i), Weight: rapid.Int32Range(1, 5).Draw(t, "weight"), Floor: rapid.Int32Range(0, 3).Draw(t, "floor"), Wanted: rapid.Int32Range(0, 12).Draw(t, "wanted"), Most: rapid.Int32Range(0, 12).Draw(t, "most")}
		rest := d.Wanted
		for _, g := range groups {
			if n := rapid.Int32Range(0, rest).Draw(t, g.Name); n > 0 {
				if d.Sources == nil {
					d.Sources = map[string]int32{}
				}
				d.Sources[g.Name] = n
				rest -= n
			}
		}
		demands[i] = d
	}
	return demands
}

func TestTargetsProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var groups []Group
		for i := range rapid.IntRange(0, 3).Draw(t, "groups") {
			groups = append(groups, Group{fmt.Sprintf("g%d", i), rapid.Int32Range(0, 8).Draw(t, "concurrency")})
		}
		demands := anyDemands(t, groups)
		total := rapid.Int64Range(0, 40).Draw(t, "total")
		got := ComputeTargets(total, groups, demands)

		var sum, floors int64
		per := map[string]int32{}
		for i, d := range demands {
			sum, floors = sum+int64(got[i].Slots), floors+int64(d.Floor)
			assert.LessOrEqual(t, got[i].Slots, max(d.Floor, d.Wanted))
			if d.Most > 0 {
				assert.LessOrEqual(t, got[i].Slots, max(d.Floor, d.Most))
			}
			assert.GreaterOrEqual(t, got[i].Slots, d.Floor)
			for name, n := range got[i].Sources {
				per[name] += n
				assert.LessOrEqual(t, n, d.Sources[name])
			}
		}
		assert.LessOrEqual(t, sum, max(total, floors))
		room := false
		for _, g := range groups {
			assert.LessOrEqual(t, per[g.Name], g.Concurrency)
			room = room || per[g.Name] < g.Concurrency
		}
		// A member that can use one more slot from anywhere has it if there is room.
		for i, d := range demands {
			plain := d.Wanted
			for name, n := range d.Sources {
				plain -= n
				for _, g := range groups {
					if g.Name == name && got[i].Sources[name] < n && per[name] < g.Concurrency {
						assert.True(t, d.Most == 0 || got[i].Slots < d.Most, "%s could have one from %s in the place of another", d.Member, name)
						assert.GreaterOrEqual(t, sum, total, "%s could have one more from %s", d.Member, name)
					}
				}
			}
			used := got[i].Slots
			for _, n := range got[i].Sources {
				used -= n
			}
			if used < plain && (d.Most == 0 || got[i].Slots < d.Most) {
				assert.GreaterOrEqual(t, sum, total, "%s could have one more", d.Member)
			}
		}
		// The order of the demands does not matter.
		order := rand.New(rand.NewSource(1)).Perm(len(demands))
		mixed := make([]Demand, len(demands))
		for i, j := range order {
			mixed[j] = demands[i]
		}
		again := ComputeTargets(total, groups, mixed)
		for i, j := range order {
			assert.Equal(t, got[i], again[j])
		}
	})
}

// Without groups and floors, a member could have one more only at the cost of a member
// with no more for its weight.
func TestTargetsAreMaxMinFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		demands := anyDemands(t, nil)
		with := 0
		for i := range demands {
			demands[i].Floor, demands[i].Most = 0, 0
			if demands[i].Wanted > 0 {
				with++
			}
		}
		total := rapid.Int64Range(0, 40).Draw(t, "total")
		got := ComputeTargets(total, nil, demands)
		for i, a := range demands {
			if got[i].Slots == a.Wanted {
				continue
			}
			if int64(with) <= total {
				assert.Positive(t, got[i].Slots, "there is one for each")
			}
			for j, b := range demands {
				if got[j].Slots > 0 {
					// Before b got its last slot, it had no more for its weight than a
					// has now.
					assert.LessOrEqual(t, (got[j].Slots-1)*a.Weight, got[i].Slots*b.Weight, "%s against %s", a.Member, b.Member)
				}
			}
		}
	})
}
