package budget

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const tolerance = 10 * time.Minute

var excessRules = Rules{Total: 4, Duration: 5 * time.Minute, ExcessTolerance: tolerance, Groups: []Group{{"eu", 3}}}

// lies are the ways to claim transfers. Each returns the facts of report n.
var lies = map[string]func(n int) MemberFacts{
	"slots": func(n int) MemberFacts { return requestingMember(int64(n), 256, 8) },
	"varying slots": func(n int) MemberFacts {
		return requestingMember(int64(n), int32(5+n*37%250), 8)
	},
	"slots now and then": func(n int) MemberFacts { return requestingMember(int64(n), int32(n%2)*256, 8) },
	"a safe share": func(n int) MemberFacts {
		f := requestingMember(int64(n), 0, 8)
		f.Transfers.Safe = 256
		return f
	},
	"an unknown grant": func(n int) MemberFacts {
		f := requestingMember(int64(n), 0, 8)
		f.Transfers.Grant, f.Transfers.Slots = int64(1_000_000+n), 256
		return f
	},
	"no limits, under a policy of its own": func(n int) MemberFacts {
		f := requestingMember(int64(n), 0, 8)
		f.Transfers.Limited, f.ReportedPolicy = false, &Bounds{Concurrency: 256, AttemptTimeout: 1000 * time.Hour}
		f.PlannedPolicy, f.DesiredPolicy.Concurrency = &Bounds{Limited: true, AttemptTimeout: attemptTimeout}, 0
		return f
	},
	"a long attemptTimeout": func(n int) MemberFacts {
		f := requestingMember(int64(n), 256, 8)
		f.ReportedPolicy = &Bounds{Limited: true, Concurrency: 256, AttemptTimeout: 1000 * time.Hour}
		return f
	},
	"another process each time": func(n int) MemberFacts {
		f := requestingMember(int64(n), 256, 8)
		f.BootID = fmt.Sprintf("boot-%d", n)
		f.Transfers.Nonce = f.BootID + "/1"
		return f
	},
	"another cluster each time": func(n int) MemberFacts {
		f := requestingMember(int64(n), 256, 8)
		f.Cluster, f.Grantable = fmt.Sprintf("rebuilt-%d", n), false
		return f
	},
	"a source group": func(n int) MemberFacts {
		f := requestingMember(int64(n), 256, 8)
		f.Transfers.Sources = sourcesOf(256)
		return f
	},
}

// Whatever a member claims, and however often, the others stand still for the tolerance
// once: also if the hub fails over meanwhile, and if the member is removed.
func TestLyingMemberCountsOnlyOnce(t *testing.T) {
	for lie, claims := range lies {
		for _, remove := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, removed %v", lie, remove), func(t *testing.T) {
				b, begin := NewAccountant(), time.Now()
				stoodStill, got, excess := time.Duration(0), int32(0), int32(0)
				for n := range 8 * 60 { // a minute each
					now := begin.Add(time.Duration(n) * time.Minute)
					honest := requestingMember(int64(n+1), 0, 8)
					honest.Transfers.Sources = sourcesOf(2)
					if g := b.accounts["honest"]; g != nil && g.lastGrant.Sequence > 0 {
						honest.Transfers.Grant, honest.Transfers.Slots = g.lastGrant.Sequence, g.lastGrant.Slots
						honest.Slots = min(g.lastGrant.Slots, 8)
					}
					b.Observe("honest", honest, now)
					if !remove || n < 5 {
						f := claims(n + 1)
						if g := b.accounts["liar"]; g != nil {
							f.Transfers.Grant = max(f.Transfers.Grant, g.lastGrant.Sequence)
						}
						b.Observe("liar", f, now)
					} else {
						b.RemoveMember("liar", now)
					}
					p := b.Allocate(excessRules, now)
					for _, a := range p.Accounts {
						if a.Member == "honest" {
							got = a.Granted
						}
						if a.Member == "liar" && n < 2 {
							excess = max(excess, a.Excess)
						}
					}
					if got == 0 {
						stoodStill += time.Minute
					}
					if n%20 == 7 { // another process is elected, with what is stored
						b = failOver(b, now)
					}
				}
				assert.Positive(t, excess, "it shows at once")
				assert.LessOrEqual(t, stoodStill, tolerance+excessRules.Duration)
				assert.GreaterOrEqual(t, got, int32(2), "its fair share")
			})
		}
	}
}

// A member may say that it is another cluster each minute, and that it runs what no plan gave it:
// all those clusters count once, and no longer than its other claims.
func TestClustersThatNeverHadAPlanCountOnce(t *testing.T) {
	for name, unfenced := range map[string]bool{"": false, ", which another process may have planned": true} {
		t.Run("clusters"+name, func(t *testing.T) {
			b, begin := NewAccountant(), time.Now()
			many := Rules{Total: 100, Duration: excessRules.Duration, ExcessTolerance: excessRules.ExcessTolerance}
			for n := range 8 * 60 {
				now := begin.Add(time.Duration(n) * time.Minute)
				f := requestingMember(int64(n+1), 8, 0)
				f.Cluster, f.PlannedPolicy, f.PlanAcknowledged, f.Grantable = fmt.Sprint(n), nil, false, false
				f.Transfers, f.Unfenced = nil, unfenced
				b.Observe("liar", f, now)
				held := b.Allocate(many, now).Held
				require.LessOrEqual(t, held, int64(2*8), "minute %d", n)
				require.LessOrEqual(t, len(b.departed), 1)
				if now.Sub(begin) > 2*many.ExcessTolerance {
					require.LessOrEqual(t, held, int64(8), "minute %d", n)
				}
				if n%20 == 7 {
					b = failOver(b, now)
				}
			}
		})
	}
}

// A cluster that had a plan counts in full, whatever cluster follows it and when its plan is known.
func TestClusterThatHadAPlanCounts(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	planned := requestingMember(1, 3, 0)
	planned.Transfers = nil
	b.Observe("a", planned, now)
	planned.PlannedPolicy, planned.PlanAcknowledged = nil, false // the next cluster's plan is written
	b.Observe("a", planned, now)
	next := idleMember(2)
	next.Cluster = "next"
	b.Observe("a", next, now)
	assert.Equal(t, int64(8), b.Allocate(excessRules, now.Add(tolerance+time.Minute)).Held)
}

// failOver returns the Accountant of the next process.
func failOver(b *Accountant, now time.Time) *Accountant {
	next := NewAccountant()
	for name, a := range b.accounts {
		possible, left := a.maxPossible(now)
		ended, _ := a.begunShare(now)
		next.LearnGrant(name, StoredGrant{Cluster: a.cluster, Grant: a.lastGrant, MaxPossible: possible, PossibleFor: left, Ended: ended.Share}, now)
	}
	for _, d := range b.Departures(nil, now) {
		next.LearnDeparture(d, now)
	}
	all, restored := b.Excesses(now)
	for _, e := range all {
		next.LearnExcess(e, now)
	}
	next.LearnRestore(restored, now)
	return next
}

// Several liars cost no more time than one if they begin together.
func TestSeveralLyingMembers(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	b.Observe("honest", requestingMember(1, 0, 4), now)
	for i := range 5 {
		b.Observe(fmt.Sprintf("liar-%d", i), requestingMember(1, 256, 0), now)
	}
	assert.Nil(t, grantFor(b.Allocate(excessRules, now), "honest"))
	now = now.Add(tolerance)
	b.Observe("honest", requestingMember(2, 0, 4), now)
	p := b.Allocate(excessRules, now)
	require.NotNil(t, grantFor(p, "honest"))
	assert.Equal(t, int32(4), grantFor(p, "honest").Slots)
	assert.Zero(t, p.Held-4)
}

// What an honest member runs stays counted for as long as it may run, although no grant
// is left for it, and over a failover.
func TestImportsBegunUnderEarlierGrantsAreNoExcess(t *testing.T) {
	for _, failedOver := range []bool{false, true} {
		t.Run(fmt.Sprintf("failed over %v", failedOver), func(t *testing.T) {
			b, now := NewAccountant(), time.Now()
			b.Observe("a", requestingMember(1, 0, 4), now)
			require.Equal(t, int32(4), grantFor(b.Allocate(excessRules, now), "a").Slots)
			f := requestingMember(2, 4, 4)
			f.Transfers.Grant, f.Transfers.Slots = 1, 4
			b.Observe("a", f, now)
			b.Observe("b", requestingMember(1, 0, 4), now)
			less := grantFor(b.Allocate(excessRules, now), "a")
			require.Equal(t, int32(2), less.Slots)
			if failedOver { // after the smaller one was acknowledged and renewed
				for n := range 2 {
					f := requestingMember(int64(3+n), 4, 4)
					f.Transfers.Grant, f.Transfers.Slots = b.LastSequence("a"), 2
					b.Observe("a", f, now)
					b.Allocate(excessRules, now)
				}
				less = &GrantWrite{Grant: b.accounts["a"].lastGrant}
				b = failOver(b, now)
			}
			for n := range 5 {
				now = now.Add(tolerance)
				f := requestingMember(int64(6+n), 4, 4)
				f.Transfers.Grant, f.Transfers.Slots = max(less.Sequence, b.LastSequence("a")), 2
				b.Observe("a", f, now)
				b.Observe("b", requestingMember(int64(2+n), 0, 4), now)
				a := accountOf(b.Allocate(excessRules, now), "a")
				assert.Equal(t, int32(4), a.Held)
				assert.Zero(t, a.Excess)
			}
			// A member that still says so when every such attempt has timed out is not honest.
			now = now.Add(attemptTimeout)
			f = requestingMember(19, 4, 4)
			f.Transfers.Grant, f.Transfers.Slots = b.LastSequence("a"), 2
			b.Observe("a", f, now)
			assert.Positive(t, accountOf(b.Allocate(excessRules, now), "a").Excess)
		})
	}
}

// A restored hub does not know what it granted. While most members say so, what they run
// counts for as long as it may run.
func TestClaimsAfterRestoreCount(t *testing.T) {
	for name, tt := range map[string]struct {
		ahead, behind int
		want          bool
	}{
		"most members are ahead": {3, 2, true},
		"one is ahead":           {1, 3, false},
		"one alone is ahead":     {1, 0, false},
		"half of them are ahead": {2, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			b, begin := NewAccountant(), time.Now()
			for i := range tt.ahead + tt.behind {
				b.LearnGrant(fmt.Sprint(i), StoredGrant{Cluster: "c", Grant: Grant{Sequence: 5, Share: Share{Slots: 1}, Nonce: "x/1", Duration: time.Minute}}, begin)
			}
			held := func(at time.Duration) int32 {
				for i := range tt.ahead + tt.behind {
					f := requestingMember(2+int64(at), 1, 0)
					f.Transfers.Grant = 5
					if i < tt.ahead {
						f.Slots, f.Transfers.Grant, f.Transfers.Slots = 3, 9, 3
					}
					b.Observe(fmt.Sprint(i), f, begin.Add(at))
				}
				p := b.Allocate(excessRules, begin.Add(at))
				b = failOver(b, begin.Add(at))
				return accountOf(p, "0").Held
			}
			assert.Equal(t, int32(3), held(0))
			assert.Equal(t, tt.want, held(attemptTimeout) == 3)
			assert.Less(t, held(3*attemptTimeout), int32(3))
		})
	}
}

// A restore is recognized although each member has used up its claims: when it joined
// under a higher concurrency of its own, or in an earlier restore.
func TestSecondRestoreIsRecognized(t *testing.T) {
	const count = 5
	for name, first := range map[string]func(n int) MemberFacts{
		"after a restore": func(n int) MemberFacts {
			f := requestingMember(int64(n), 3, 1)
			f.Transfers.Grant, f.Transfers.Slots = 9, 3
			return f
		},
		"after joining with a higher concurrency": func(n int) MemberFacts {
			f := requestingMember(int64(n), 0, 0)
			f.Transfers.Limited, f.ReportedPolicy, f.PlanAcknowledged = false, &Bounds{Concurrency: 20, AttemptTimeout: attemptTimeout}, false
			return f
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, now := NewAccountant(), time.Now()
			total := Rules{Total: 100, Duration: 5 * time.Minute, ExcessTolerance: tolerance}
			observe := func(facts func(n int) MemberFacts, n int) Allocation {
				for i := range count {
					b.Observe(fmt.Sprint(i), facts(n), now)
				}
				return b.Allocate(total, now)
			}
			backup := func() {
				for i := range count {
					b.LearnGrant(fmt.Sprint(i), StoredGrant{Cluster: "c", Grant: Grant{Sequence: 5, Share: Share{Slots: 1}, Nonce: "x/1", Duration: time.Minute}}, now)
				}
			}
			backup()
			observe(first, 1)
			require.Len(t, b.excess, count)
			now = now.Add(3 * attemptTimeout)
			observe(first, 2)
			for n := range 3 { // they get and acknowledge grants of this hub
				now = now.Add(time.Minute)
				sequence := b.LastSequence("0")
				observe(func(int) MemberFacts {
					f := requestingMember(int64(3+n), 0, 1)
					f.Transfers.Grant = sequence
					return f
				}, 0)
			}

			all, _ := b.Excesses(now)
			b, now = NewAccountant(), now.Add(time.Hour)
			for _, e := range all {
				b.LearnExcess(e, now)
			}
			backup()
			restored := func(n int) MemberFacts {
				f := requestingMember(int64(n), 3, 0)
				f.Transfers.Grant, f.Transfers.Slots = 50, 3
				return f
			}
			for n, after := range []time.Duration{0, tolerance, attemptTimeout - tolerance} {
				now = now.Add(after)
				assert.Equal(t, int64(3*count), observe(restored, 10+n).Held)
			}
		})
	}
}

// A member that has said for its tolerance that the hub was restored is no witness any
// more, neither for a restore nor against it, also after a failover.
func TestWitnessOfRestoreEnds(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	observe := func(n int, liars ...string) {
		for _, name := range []string{"a", "b", "liar"} {
			f := idleMember(int64(n))
			f.Slots, f.Transfers.Grant = 1, 5
			if slices.Contains(liars, name) {
				f.Transfers.Grant, f.Transfers.Slots = 9, 1
			}
			b.Observe(name, f, now)
		}
		b.Allocate(excessRules, now)
	}
	for _, name := range []string{"a", "b", "liar"} { // which ask for no other grant
		b.LearnGrant(name, StoredGrant{Cluster: "c", Grant: Grant{Sequence: 5, Share: Share{Slots: 1}, Nonce: "x/1", Duration: time.Minute}}, now)
	}
	observe(1, "liar")
	require.False(t, b.restoreProven)
	now = now.Add(tolerance)
	b = failOver(b, now)
	observe(2, "liar", "a")
	assert.False(t, b.restoreProven, "of two words one is spent")
	assert.False(t, b.accounts["liar"].grantInUse)

	// What proves a restore proves it once.
	observe(3, "liar", "a", "b")
	require.True(t, b.restoreProven)
	for n := range 3 {
		now = now.Add(attemptTimeout)
		b = failOver(b, now)
		observe(4+n, "liar", "a", "b")
		assert.False(t, b.restoreProven)
	}
	assert.True(t, now.After(b.restoredUntil))
}

// A quarantined member counts for nothing, whatever it says, and is trusted again
// afterwards.
func TestQuarantine(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	b.Observe("liar", requestingMember(1, 256, 4), now)
	b.Observe("honest", requestingMember(1, 0, 4), now)
	require.Nil(t, grantFor(b.Allocate(excessRules, now), "honest"))
	f := requestingMember(1, 256, 4)
	f.Quarantined, f.Learning = true, true
	b.Observe("liar", f, now)
	p := b.Allocate(excessRules, now)
	require.NotNil(t, grantFor(p, "honest"), "at once")
	assert.Equal(t, int32(4), grantFor(p, "honest").Slots)
	assert.Zero(t, accountOf(p, "liar").Held)
	assert.Empty(t, b.Departures([]string{"liar"}, now), "and is not reserved when it leaves")

	back := requestingMember(2, 0, 4)
	b.Observe("liar", back, now)
	p = b.Allocate(excessRules, now)
	assert.Zero(t, accountOf(p, "liar").Excess)
	b.Observe("liar", requestingMember(3, 256, 4), now)
	assert.Equal(t, int32(256), accountOf(b.Allocate(excessRules, now), "liar").Held, "it is believed once more")

	b.Observe("liar", f, now)
	b.RemoveMember("liar", now)
	assert.Equal(t, int64(4), b.Allocate(excessRules, now).Held)
}

func TestWriteOff(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	b.Observe("a", requestingMember(1, 0, 3), now)
	b.Allocate(rules, now)
	b.RemoveMember("a", now)
	require.Equal(t, int64(3), b.Allocate(rules, now).Held)
	b.WriteOff("another")
	require.Equal(t, int64(3), b.Allocate(rules, now).Held)
	b.WriteOff("a")
	assert.Zero(t, b.Allocate(rules, now).Held)
	assert.Empty(t, b.Departures(nil, now))
}

// Never is less held than what the hub knows, and never more than that once the excess
// has ended.
func TestHeldShareIsBetweenKnownAndClaimed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, now := NewAccountant(), time.Now()
		for n := range rapid.IntRange(1, 30).Draw(t, "reports") {
			now = now.Add(time.Duration(rapid.IntRange(0, 900).Draw(t, "seconds")) * time.Second)
			lie := rapid.SampledFrom([]string{"slots", "a safe share", "an unknown grant", "another process each time", "another cluster each time"}).Draw(t, "lie")
			f := lies[lie](n + 1)
			f.Slots = rapid.Int32Range(0, 256).Draw(t, "slots")
			b.Observe("liar", f, now)
			p := b.Allocate(excessRules, now)
			a := b.accounts["liar"]
			known, _ := a.knownShare(excessRules.Groups, b.hubRestored, now)
			held := accountOf(p, "liar").Held
			assert.GreaterOrEqual(t, held, known.Slots)
			if record, ok := b.excess["liar"]; ok && !now.Before(record.endsAt) {
				assert.Equal(t, known.Slots, held)
				assert.LessOrEqual(t, int64(held), 2*excessRules.Total)
			}
		}
	})
}

func sourcesOf(n int32) []v1alpha1.SourceDemand {
	return []v1alpha1.SourceDemand{{Name: "eu", Running: n, Wanted: n}}
}
