package budget

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestDepartures(t *testing.T) {
	b, now := NewBook(), time.Now()
	b.See("a", member(1, 0, 3), now)
	b.Plan(rules, now)
	leaving := b.Departures([]string{"a"}, now)
	require.Len(t, leaving, 1)
	assert.Equal(t, Departure{Member: "a", Cluster: "c", Slots: 3, Left: leaving[0].Left}, leaving[0])
	assert.Greater(t, leaving[0].Left, timeout+rules.Duration)
	b.Remove("a", now)
	assert.Equal(t, leaving, b.Departures(nil, now))

	next := NewBook()
	for range 3 {
		next.Recall(leaving[0], now)
	}
	assert.Equal(t, int64(3), next.Plan(rules, now).Held, "it counts once")
	assert.Equal(t, int64(3), next.Plan(rules, now.Add(leaving[0].Left)).Held)
	assert.Zero(t, next.Plan(rules, now.Add(leaving[0].Left+leaving[0].Left/50)).Held)
	assert.Empty(t, next.Departures(nil, now.Add(2*leaving[0].Left)))
}

// What a cluster may have begun in its safe share when it departed counts as long as it
// lasts.
func TestTheSafeShareOfADepartedCluster(t *testing.T) {
	b, now := NewBook(), time.Now()
	f := resting(1)
	f.Transfers.Safe = 2
	b.See("a", f, now)
	b.Remove("a", now)
	assert.Equal(t, int64(2), b.Plan(rules, now.Add(timeout)).Held)
	assert.Zero(t, b.Plan(rules, now.Add(timeout+2*time.Minute)).Held)
}

// Of a grant that is stored for another cluster, and of which nothing is known but that,
// it counts that what is begun under it lasts.
func TestAGrantOfAnotherClusterLasts(t *testing.T) {
	b, now := NewBook(), time.Now()
	b.Learn("a", Stored{Cluster: "former", Grant: Grant{Sequence: 5, Share: Share{Slots: 3}, Nonce: "x/1", Duration: time.Minute}}, now)
	b.See("a", resting(1), now)
	p := b.Plan(rules, now.Add(time.Minute+timeout))
	assert.Equal(t, int64(3), p.Held)
	assert.Zero(t, account1(p, "a").Held)
	assert.Equal(t, int64(5), b.Sequence("a"), "the sequences go on")
}

func TestAMissingReportIsNotNothing(t *testing.T) {
	b, now := NewBook(), time.Now()
	b.Learn("a", Stored{Cluster: "c", Grant: Grant{Sequence: 5, Nonce: "x/1", Duration: time.Minute}}, now)
	f := Facts{Planned: &Bounds{Limited: true, Concurrency: 6, Safe: 1, AttemptTimeout: timeout}, Unread: true}
	b.See("a", f, now)
	held := func(after time.Duration) int32 { return account1(b.Plan(rules, now.Add(after)), "a").Held }
	assert.Equal(t, int32(6), held(time.Minute+timeout))
	assert.Equal(t, int32(1), held(time.Hour+timeout), "its safe share")
	// One that came late says nothing, one that was read does.
	late := resting(1)
	late.Unread = true
	b.See("a", late, now)
	assert.Equal(t, int32(8), held(0))
	b.See("a", resting(2), now)
	assert.Zero(t, held(0))
}

// A hub that finds that it was restored holds all that the plans of those allow that it
// has not read.
func TestARestoredHub(t *testing.T) {
	b, now := NewBook(), time.Now()
	for _, name := range []string{"a", "b"} {
		b.Learn(name, Stored{Cluster: "c", Grant: Grant{Sequence: 5, Nonce: "x/1", Duration: time.Minute}}, now)
	}
	dark := resting(1)
	dark.Unread, dark.Dark = true, true
	b.See("a", dark, now)
	b.See("b", resting(1), now)
	assert.Zero(t, b.Plan(rules, now).Held)
	ahead := resting(2)
	ahead.Transfers.Grant = 9
	b.See("b", ahead, now)
	p := b.Plan(rules, now)
	assert.Equal(t, int32(8), account1(p, "a").Held)
	assert.Zero(t, account1(p, "b").Held)
}

// However many grants there were, no less is held than any of them allows that may be
// in force, or under which something may run.
func TestNoGrantIsForgotten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, begin := &account{}, time.Now()
		a.facts.Desired.AttemptTimeout = time.Minute
		var all []given
		for i := range rapid.IntRange(1, 3*mostGiven).Draw(t, "grants") {
			g := given{
				Grant: Grant{Sequence: int64(i), Share: Share{Slots: rapid.Int32Range(0, 9).Draw(t, "slots")}, Nonce: fmt.Sprintf("boot/%d", i)},
				ends:  begin.Add(time.Duration(rapid.IntRange(0, 600).Draw(t, "ends")) * time.Second),
			}
			all = append(all, g)
			a.give(g.Grant, g.ends)
		}
		now := begin.Add(time.Duration(rapid.IntRange(0, 700).Draw(t, "now")) * time.Second)
		held, _ := a.held(nil, false, now)
		for _, g := range all {
			if now.Before(g.ends.Add(time.Minute)) {
				assert.GreaterOrEqual(t, held.Slots, g.Slots)
			}
		}
	})
}

// Where there are fewer slots than members that want some, each has its turn: nobody is
// passed over that has had less for its weight than another, by more than one turn.
func TestEachHasItsTurn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int64Range(1, 4).Draw(t, "total")
		demands := make([]Demand, rapid.IntRange(int(total)+1, 9).Draw(t, "members"))
		for i := range demands {
			demands[i] = Demand{Member: fmt.Sprintf("m%d", i), Weight: rapid.Int32Range(1, 3).Draw(t, "weight"), Wanted: rapid.Int32Range(1, 5).Draw(t, "wanted")}
		}
		const rounds, turn = 60, 6
		turns := make([]int64, len(demands))
		for range rounds {
			shares, sum, most := Targets(total, nil, demands), int64(0), int64(0)
			for i, share := range shares {
				if share.Slots > 0 {
					turns[i]++
					demands[i].Used += turn / int64(demands[i].Weight)
				}
				sum += int64(share.Slots)
				most = max(most, demands[i].Used)
			}
			assert.Equal(t, total, sum)
			for i, share := range shares {
				if share.Slots == 0 {
					assert.LessOrEqual(t, most-demands[i].Used, int64(turn), "%s is passed over: %v", demands[i].Member, turns)
				}
			}
		}
		for i := range demands {
			assert.Positive(t, turns[i])
		}
	})
}

// A safe share that is taken back counts as long as the plan in force gives it.
func TestASafeShareThatIsTakenBack(t *testing.T) {
	b, now := NewBook(), time.Now()
	f := resting(1)
	planned := *f.Planned
	planned.Safe = 2
	f.Planned = &planned
	for range 3 {
		b.See("a", f, now)
		assert.Equal(t, int32(2), account1(b.Plan(rules, now), "a").Held)
	}
}
