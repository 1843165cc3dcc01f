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
	b, now := NewAccountant(), time.Now()
	b.Observe("a", requestingMember(1, 0, 3), now)
	b.Allocate(rules, now)
	leaving := b.Departures([]string{"a"}, now)
	require.Len(t, leaving, 1)
	assert.Equal(t, Departure{Member: "a", Cluster: "c", Slots: 3, Remaining: leaving[0].Remaining}, leaving[0])
	assert.Greater(t, leaving[0].Remaining, attemptTimeout+rules.Duration)
	b.RemoveMember("a", now)
	assert.Equal(t, leaving, b.Departures(nil, now))

	next := NewAccountant()
	for range 3 {
		next.LearnDeparture(leaving[0], now)
	}
	assert.Equal(t, int64(3), next.Allocate(rules, now).Held, "it counts once")
	assert.Equal(t, int64(3), next.Allocate(rules, now.Add(leaving[0].Remaining)).Held)
	assert.Zero(t, next.Allocate(rules, now.Add(leaving[0].Remaining+leaving[0].Remaining/50)).Held)
	assert.Empty(t, next.Departures(nil, now.Add(2*leaving[0].Remaining)))
}

// What a cluster may have begun in its safe share before it departed counts while it may
// run.
func TestSafeShareOfDepartedClusterCounts(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	f := idleMember(1)
	f.Transfers.Safe = 2
	b.Observe("a", f, now)
	b.RemoveMember("a", now)
	assert.Equal(t, int64(2), b.Allocate(rules, now.Add(attemptTimeout)).Held)
	assert.Zero(t, b.Allocate(rules, now.Add(attemptTimeout+2*time.Minute)).Held)
}

// A stored grant for another cluster, of which nothing else is known, counts until its
// attempts have ended.
func TestGrantOfFormerClusterLasts(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	b.LearnGrant("a", StoredGrant{Cluster: "former", Grant: Grant{Sequence: 5, Share: Share{Slots: 3}, Nonce: "x/1", Duration: time.Minute}}, now)
	b.Observe("a", idleMember(1), now)
	p := b.Allocate(rules, now.Add(time.Minute+attemptTimeout))
	assert.Equal(t, int64(3), p.Held)
	assert.Zero(t, accountOf(p, "a").Held)
	assert.Equal(t, int64(5), b.LastSequence("a"), "sequences continue")
}

func TestMissingReportReservesPlannedShare(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	b.LearnGrant("a", StoredGrant{Cluster: "c", Grant: Grant{Sequence: 5, Nonce: "x/1", Duration: time.Minute}}, now)
	f := MemberFacts{PlannedPolicy: &Bounds{Limited: true, Concurrency: 6, Safe: 1, AttemptTimeout: attemptTimeout}, ReportUnread: true}
	b.Observe("a", f, now)
	held := func(after time.Duration) int32 { return accountOf(b.Allocate(rules, now.Add(after)), "a").Held }
	assert.Equal(t, int32(6), held(time.Minute+attemptTimeout))
	assert.Equal(t, int32(1), held(time.Hour+attemptTimeout), "its safe share")
	// A late report says nothing; one that was read does.
	late := idleMember(1)
	late.ReportUnread = true
	b.Observe("a", late, now)
	assert.Equal(t, int32(8), held(0))
	b.Observe("a", idleMember(2), now)
	assert.Zero(t, held(0))
}

// A report stays read when the connection ends: what came after it, this process has given
// itself. Otherwise each member that leaves would hold a day of its planned share.
func TestReportStaysRead(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	f := MemberFacts{PlannedPolicy: &Bounds{Limited: true, Concurrency: 6, AttemptTimeout: attemptTimeout}, ReportUnread: true}
	b.Observe("a", f, now)
	b.Observe("a", idleMember(1), now)
	disconnected := idleMember(1)
	disconnected.ReportUnread = true
	b.Observe("a", disconnected, now)
	assert.Zero(t, accountOf(b.Allocate(rules, now), "a").Held)
	assert.Empty(t, b.Departures([]string{"a"}, now))
}

// A restored hub reserves what the plans of members allow whose reports it has not read.
func TestRestoredHubReservesUnknownGrants(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	for _, name := range []string{"a", "b"} {
		b.LearnGrant(name, StoredGrant{Cluster: "c", Grant: Grant{Sequence: 5, Nonce: "x/1", Duration: time.Minute}}, now)
	}
	dark := idleMember(1)
	dark.ReportUnread, dark.Silent = true, true
	b.Observe("a", dark, now)
	b.Observe("b", idleMember(1), now)
	assert.Zero(t, b.Allocate(rules, now).Held)
	ahead := idleMember(2)
	ahead.Transfers.Grant = 9
	b.Observe("b", ahead, now)
	p := b.Allocate(rules, now)
	assert.Equal(t, int32(8), accountOf(p, "a").Held)
	assert.Zero(t, accountOf(p, "b").Held)
}

// However many grants there were, no less is held than any valid one allows.
func TestMergedGrantsAreNotForgotten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, begin := &account{}, time.Now()
		a.facts.DesiredPolicy.AttemptTimeout = time.Minute
		var all []trackedGrant
		for i := range rapid.IntRange(1, 3*maxTrackedGrants).Draw(t, "grants") {
			g := trackedGrant{
				Grant:     Grant{Sequence: int64(i), Share: Share{Slots: rapid.Int32Range(0, 9).Draw(t, "slots")}, Nonce: fmt.Sprintf("boot/%d", i)},
				expiresAt: begin.Add(time.Duration(rapid.IntRange(0, 600).Draw(t, "ends")) * time.Second),
			}
			all = append(all, g)
			a.recordGrant(g.Grant, g.expiresAt)
		}
		now := begin.Add(time.Duration(rapid.IntRange(0, 700).Draw(t, "now")) * time.Second)
		b := NewAccountant()
		held, _ := b.heldShare(a, nil, now)
		for _, g := range all {
			if now.Before(g.expiresAt.Add(time.Minute)) {
				assert.GreaterOrEqual(t, held.Slots, g.Slots)
			}
		}
	})
}

// If there are fewer slots than members that want some, members take turns: none falls
// behind another, by weight, by more than one turn.
func TestMembersTakeTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int64Range(1, 4).Draw(t, "total")
		demands := make([]Demand, rapid.IntRange(int(total)+1, 9).Draw(t, "members"))
		for i := range demands {
			demands[i] = Demand{Member: fmt.Sprintf("m%d", i), Weight: rapid.Int32Range(1, 3).Draw(t, "weight"), Wanted: rapid.Int32Range(1, 5).Draw(t, "wanted")}
		}
		const rounds, turn = 60, 6
		turns := make([]int64, len(demands))
		for range rounds {
			shares, sum, most := ComputeTargets(total, nil, demands), int64(0), int64(0)
			for i, share := range shares {
				if share.Slots > 0 {
					turns[i]++
					demands[i].Usage += turn / int64(demands[i].Weight)
				}
				sum += int64(share.Slots)
				most = max(most, demands[i].Usage)
			}
			assert.Equal(t, total, sum)
			for i, share := range shares {
				if share.Slots == 0 {
					assert.LessOrEqual(t, most-demands[i].Usage, int64(turn), "%s is passed over: %v", demands[i].Member, turns)
				}
			}
		}
		for i := range demands {
			assert.Positive(t, turns[i])
		}
	})
}

// A reduced safe share counts while the plan in force gives it.
func TestReducedSafeShareCountsUntilAcknowledged(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	f := idleMember(1)
	planned := *f.PlannedPolicy
	planned.Safe = 2
	f.PlannedPolicy = &planned
	for range 3 {
		b.Observe("a", f, now)
		assert.Equal(t, int32(2), accountOf(b.Allocate(rules, now), "a").Held)
	}
}
