package budget

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const timeout = time.Hour

// member is one that goes by grants, has acknowledged its plan, and asks.
func member(report int64, slots, wanted int32) Facts {
	b := Bounds{Limited: true, Concurrency: 8, AttemptTimeout: timeout}
	return Facts{
		Cluster: "c", Report: report, Boot: "boot", Slots: slots, InForce: &b, Planned: &b, Desired: b, Acknowledged: true, SameSources: true, Grantable: true, Weight: 1,
		Transfers: &v1alpha1.ReportedTransfers{Limited: true, Wanted: wanted, Nonce: fmt.Sprintf("boot/%d", report)},
	}
}

// resting is one that asks for nothing.
func resting(report int64) Facts {
	f := member(report, 0, 0)
	f.Transfers.Nonce = ""
	return f
}

var rules = Rules{Total: 4, Duration: 5 * time.Minute}

func account1(p Plan, name string) Account {
	for _, a := range p.Accounts {
		if a.Member == name {
			return a
		}
	}
	return Account{}
}

func given1(p Plan, name string) *Next {
	for i := range p.Grants {
		if p.Grants[i].Member == name {
			return &p.Grants[i]
		}
	}
	return nil
}

// What is held of one member, so that another has the rest, and no more.
func TestHeld(t *testing.T) {
	unlimited := func(f *Facts) { f.Transfers.Limited = false; f.Transfers.Nonce = "" }
	for name, tt := range map[string]struct {
		change func(*Facts)
		want   int32
	}{
		"nothing":                      {func(f *Facts) { f.Transfers.Nonce = "" }, 0},
		"slots in use":                 {func(f *Facts) { f.Slots = 3; f.Transfers.Nonce = "" }, 3},
		"its safe share by the report": {func(f *Facts) { f.Transfers.Safe = 2; f.Transfers.Nonce = "" }, 2},
		"its safe share by the plan":   {func(f *Facts) { f.Planned.Safe = 2; f.Transfers.Nonce = "" }, 2},
		"a grant that it has":          {func(f *Facts) { f.Transfers.Wanted = 3 }, 3},
		"no limits yet":                {unlimited, 8},
		"an older agent":               {func(f *Facts) { f.Transfers = nil }, 8},
		"a plan without limits, unread": {func(f *Facts) {
			p := *f.Planned
			p.Limited, p.Concurrency = false, 6
			f.Planned, f.Acknowledged = &p, false
			f.Transfers.Nonce = ""
		}, 6},
		"one without limits before it, unread": {func(f *Facts) {
			f.Acknowledged, f.Superseded = false, &Bounds{Concurrency: 5}
			f.Transfers.Nonce = ""
		}, 5},
		"and read":                      {func(f *Facts) { f.Superseded = &Bounds{Concurrency: 5}; f.Transfers.Nonce = "" }, 0},
		"never reported, never planned": {func(f *Facts) { *f = Facts{} }, 0},
		"no report of one with a plan":  {func(f *Facts) { *f = Facts{Planned: &Bounds{Concurrency: 5}} }, 5},
		"what no book knows of":         {func(f *Facts) { f.Transfers.Grant, f.Transfers.Slots, f.Transfers.Nonce = 9, 3, "" }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			b, now := NewBook(), time.Now()
			f := member(1, 0, 0)
			tt.change(&f)
			b.See("a", f, now)
			p := b.Plan(Rules{Total: 100, Duration: 5 * time.Minute}, now)
			assert.Equal(t, tt.want, account1(p, "a").Held)
			b.See("b", member(1, 0, 100), now)
			p = b.Plan(Rules{Total: 10, Duration: 5 * time.Minute}, now)
			require.NotNil(t, given1(p, "b"))
			assert.Equal(t, 10-tt.want, given1(p, "b").Slots)
		})
	}
}

// A member that goes dark holds what it was granted until that has ended and what
// it may have begun has timed out.
func TestADarkMemberIsReservedFor(t *testing.T) {
	b, begin := NewBook(), time.Now()
	b.See("a", member(1, 0, 3), begin)
	p := b.Plan(rules, begin)
	require.Equal(t, int32(3), given1(p, "a").Slots)
	at := func(after time.Duration) Account {
		f := member(1, 0, 3)
		f.Dark = true
		b.See("a", f, begin.Add(after))
		return account1(b.Plan(rules, begin.Add(after)), "a")
	}
	assert.Equal(t, int32(3), at(5*time.Minute+timeout).Held)
	assert.Equal(t, v1alpha1.TransfersReserved, at(5*time.Minute+timeout).Reason)
	assert.Equal(t, int32(0), at(5*time.Minute+timeout+5*time.Minute).Held)
	assert.Equal(t, v1alpha1.TransfersSafeShare, at(2*timeout).Reason)
}

func TestALongerAttemptTimeoutCountsBeforeItIsAcknowledged(t *testing.T) {
	b, begin := NewBook(), time.Now()
	b.See("a", member(1, 0, 3), begin)
	b.Plan(rules, begin)
	f := member(1, 0, 3)
	planned := *f.Planned
	planned.AttemptTimeout = 3 * timeout
	f.Planned, f.Acknowledged = &planned, false
	b.See("a", f, begin)
	assert.Equal(t, int32(3), account1(b.Plan(rules, begin.Add(2*timeout)), "a").Held)
	assert.Equal(t, int32(0), account1(b.Plan(rules, begin.Add(4*timeout)), "a").Held)
}

func TestAnotherProcessHasNothingOfAGrant(t *testing.T) {
	b, now := NewBook(), time.Now()
	b.See("a", member(1, 0, 3), now)
	b.Plan(rules, now)
	f := member(2, 1, 0)
	f.Boot, f.Transfers.Nonce = "reboot", ""
	b.See("a", f, now)
	assert.Equal(t, int32(1), account1(b.Plan(rules, now), "a").Held)
}

func TestWhatAnotherClusterHadStaysReserved(t *testing.T) {
	b, now := NewBook(), time.Now()
	b.See("a", member(1, 0, 3), now)
	b.Plan(rules, now)
	f := member(1, 0, 4)
	f.Cluster = "rebuilt"
	b.See("a", f, now)
	p := b.Plan(rules, now)
	assert.Equal(t, int32(1), given1(p, "a").Slots, "the other three may be running")
	assert.Equal(t, int64(2), given1(p, "a").Sequence, "the sequences go on")

	b = NewBook()
	b.See("a", member(1, 0, 3), now)
	b.Plan(rules, now)
	b.Remove("a", now)
	assert.Equal(t, int64(3), b.Plan(rules, now).Held)
	assert.Zero(t, b.Plan(rules, now.Add(2*timeout)).Held)
	b.See("b", member(1, 0, 0), now)
	b.Remove("b", now)
	assert.Empty(t, b.Plan(rules, now.Add(2*timeout)).Accounts, "one that has nothing is gone at once")
}

func TestNobodyGetsMoreWhileMoreIsHeldThanThereIs(t *testing.T) {
	b, now := NewBook(), time.Now()
	b.See("a", member(1, 4, 6), now)
	b.Plan(rules, now)
	less := rules
	less.Total = 2
	b.See("b", member(1, 0, 2), now)
	p := b.Plan(less, now)
	assert.Equal(t, int32(1), given1(p, "a").Slots)
	assert.Nil(t, given1(p, "b"))
	assert.Equal(t, v1alpha1.TransfersOverBudget, account1(p, "b").Reason)
}

func TestASafeShareWaitsForRoom(t *testing.T) {
	b, now := NewBook(), time.Now()
	b.See("a", member(1, 0, 4), now)
	b.Plan(rules, now)
	f := resting(1)
	f.Desired.Safe = 2
	b.See("b", f, now)
	p := b.Plan(rules, now)
	n, known := b.Safe("b")
	assert.True(t, known)
	assert.Zero(t, n, "all is granted to the other")
	assert.Equal(t, int32(2), given1(p, "a").Slots, "which is asked for it")
	back := member(2, 1, 4)
	back.Transfers.Grant, back.Transfers.Slots = given1(p, "a").Sequence, 2
	b.See("a", back, now)
	b.Plan(rules, now)
	n, _ = b.Safe("b")
	assert.Equal(t, int32(2), n)

	// What is taken back counts until a plan without it is acknowledged.
	f.Desired.Safe = 0
	given := *f.Planned
	given.Safe = 2
	f.Planned, f.Acknowledged = &given, false
	b.See("b", f, now)
	p = b.Plan(rules, now)
	n, _ = b.Safe("b")
	assert.Zero(t, n)
	assert.Equal(t, int32(2), account1(p, "b").Held)
	f = resting(2)
	b.See("b", f, now)
	b.Plan(rules, now)
	b.See("b", f, now)
	assert.Zero(t, account1(b.Plan(rules, now), "b").Held)
}

func TestNothingIsRaisedWhileItIsLearnt(t *testing.T) {
	b, now := NewBook(), time.Now()
	f := member(1, 0, 0)
	f.Learning = true
	b.See("a", f, now)
	b.See("b", member(1, 0, 2), now)
	p := b.Plan(rules, now)
	assert.Nil(t, given1(p, "b"))
	assert.Equal(t, v1alpha1.TransfersLearning, account1(p, "b").Reason)
}

func TestGroupsOfSources(t *testing.T) {
	groups := Rules{Total: 10, Duration: time.Minute, Groups: []Group{{"eu", 3}}}
	asks := func(report int64, wanted, running int32) Facts {
		f := member(report, running, wanted)
		f.Transfers.Sources = []v1alpha1.SourceDemand{{Name: "eu", Wanted: wanted, Running: running}}
		return f
	}
	b, now := NewBook(), time.Now()
	b.See("a", asks(1, 3, 0), now)
	p := b.Plan(groups, now)
	assert.Equal(t, map[string]int32{"eu": 3}, given1(p, "a").Sources)
	b.See("b", asks(1, 3, 0), now)
	p = b.Plan(groups, now)
	assert.Less(t, given1(p, "a").Sources["eu"], int32(3), "it is taken back")
	assert.Nil(t, given1(p, "b"), "and not given before it is free")

	// One that has not acknowledged the groups may run all that it holds from any.
	b = NewBook()
	f := member(1, 2, 0)
	f.SameSources = false
	b.See("a", f, now)
	b.See("b", asks(1, 3, 0), now)
	p = b.Plan(groups, now)
	assert.Equal(t, map[string]int32{"eu": 1}, given1(p, "b").Sources)
}

// However many grants one is made, what is kept of them stays small, and no less.
func TestManyGrantsOfOneMember(t *testing.T) {
	a, now := &account{}, time.Now()
	for i := range 100 {
		a.give(Grant{Sequence: int64(i), Share: Share{Slots: int32(i % 7)}, Nonce: fmt.Sprintf("boot/%d", i)}, now.Add(time.Duration(i%5)*time.Minute))
	}
	assert.LessOrEqual(t, len(a.given), mostGiven)
	s, left := a.possible(now)
	assert.Equal(t, int32(6), s.Slots)
	assert.Equal(t, 4*time.Minute, left)
}

// What one change costs among a thousand members.
func BenchmarkPlan(b *testing.B) {
	book, now := NewBook(), time.Now()
	rules := Rules{Total: 2000, Duration: 5 * time.Minute}
	for i := range 1000 {
		book.See(fmt.Sprintf("m%d", i), member(1, 0, 5), now)
	}
	book.Plan(rules, now)
	for i := 0; b.Loop(); i++ {
		book.See(fmt.Sprintf("m%d", i%1000), member(int64(i/1000+2), int32(i%3), int32(3+i%4)), now)
		book.Plan(rules, now)
	}
}
