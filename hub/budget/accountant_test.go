package budget

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const attemptTimeout = time.Hour

// requestingMember is limited by grants, has acknowledged its plan, and has a request.
func requestingMember(report int64, slots, wanted int32) MemberFacts {
	b := Bounds{Limited: true, Concurrency: 8, AttemptTimeout: attemptTimeout}
	return MemberFacts{
		Cluster: "c", ReportSequence: report, BootID: "boot", Slots: slots, ReportedPolicy: &b, PlannedPolicy: &b, DesiredPolicy: b, PlanAcknowledged: true, SourcesCurrent: true, Grantable: true, Weight: 1,
		Transfers: &v1alpha1.ReportedTransfers{Limited: true, Wanted: wanted, Nonce: fmt.Sprintf("boot/%d", report)},
	}
}

// idleMember wants nothing.
func idleMember(report int64) MemberFacts {
	f := requestingMember(report, 0, 0)
	f.Transfers.Nonce = ""
	return f
}

// Where a cluster's clock went back its reports are older than the hub's copy, until a person
// deletes that.
func TestReportsBeginAnewWithAnotherCopy(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	ahead := requestingMember(1000, 3, 3)
	ahead.ReportUID = "first"
	b.Observe("a", ahead, now)
	late := idleMember(7)
	late.ReportUID = "first"
	b.Observe("a", late, now)
	assert.Equal(t, int32(3), b.accounts["a"].facts.Slots, "a late copy says nothing new")
	b.Observe("a", MemberFacts{DesiredPolicy: ahead.DesiredPolicy, PlannedPolicy: ahead.PlannedPolicy}, now)
	assert.Equal(t, int32(3), b.accounts["a"].facts.Slots, "nor does one that is deleted")
	late.ReportUID = "second"
	b.Observe("a", late, now)
	assert.Zero(t, b.accounts["a"].facts.Slots)
	again := requestingMember(8, 0, 2)
	again.ReportUID = "second"
	b.Observe("a", again, now)
	assert.Equal(t, int32(2), grantFor(b.Allocate(rules, now), "a").Slots)
}

var rules = Rules{Total: 4, Duration: 5 * time.Minute}

func accountOf(p Allocation, name string) MemberAccount {
	for _, a := range p.Accounts {
		if a.Member == name {
			return a
		}
	}
	return MemberAccount{}
}

func grantFor(p Allocation, name string) *GrantWrite {
	for i := range p.Grants {
		if p.Grants[i].Member == name {
			return &p.Grants[i]
		}
	}
	return nil
}

// What one member holds leaves the rest to another, and no more.
func TestHeldShareLeavesRestToOthers(t *testing.T) {
	unlimited := func(f *MemberFacts) { f.Transfers.Limited = false; f.Transfers.Nonce = "" }
	for name, tt := range map[string]struct {
		change func(*MemberFacts)
		want   int32
	}{
		"nothing":                      {func(f *MemberFacts) { f.Transfers.Nonce = "" }, 0},
		"slots in use":                 {func(f *MemberFacts) { f.Slots = 3; f.Transfers.Nonce = "" }, 3},
		"its safe share by the report": {func(f *MemberFacts) { f.Transfers.Safe = 2; f.Transfers.Nonce = "" }, 2},
		"its safe share by the plan":   {func(f *MemberFacts) { f.PlannedPolicy.Safe = 2; f.Transfers.Nonce = "" }, 2},
		"a grant that it has":          {func(f *MemberFacts) { f.Transfers.Wanted = 3 }, 3},
		"no limits yet":                {unlimited, 8},
		"an older agent":               {func(f *MemberFacts) { f.Transfers = nil }, 8},
		"a plan without limits, unread": {func(f *MemberFacts) {
			p := *f.PlannedPolicy
			p.Limited, p.Concurrency = false, 6
			f.PlannedPolicy, f.PlanAcknowledged = &p, false
			f.Transfers.Nonce = ""
		}, 6},
		"one without limits before it, unread": {func(f *MemberFacts) {
			f.PlanAcknowledged, f.SupersededPolicy = false, &Bounds{Concurrency: 5}
			f.Transfers.Nonce = ""
		}, 5},
		"and read":                      {func(f *MemberFacts) { f.SupersededPolicy = &Bounds{Concurrency: 5}; f.Transfers.Nonce = "" }, 0},
		"never reported, never planned": {func(f *MemberFacts) { *f = MemberFacts{} }, 0},
		"no report of one with a plan":  {func(f *MemberFacts) { *f = MemberFacts{PlannedPolicy: &Bounds{Concurrency: 5}} }, 5},
		"what no book knows of":         {func(f *MemberFacts) { f.Transfers.Grant, f.Transfers.Slots, f.Transfers.Nonce = 9, 3, "" }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			b, now := NewAccountant(), time.Now()
			f := requestingMember(1, 0, 0)
			tt.change(&f)
			b.Observe("a", f, now)
			p := b.Allocate(Rules{Total: 100, Duration: 5 * time.Minute}, now)
			assert.Equal(t, tt.want, accountOf(p, "a").Held)
			b.Observe("b", requestingMember(1, 0, 100), now)
			p = b.Allocate(Rules{Total: 10, Duration: 5 * time.Minute}, now)
			require.NotNil(t, grantFor(p, "b"))
			assert.Equal(t, 10-tt.want, grantFor(p, "b").Slots)
		})
	}
}

// A silent member holds its grant until the grant has expired and all attempts under it
// have timed out.
func TestSilentMemberKeepsItsReservation(t *testing.T) {
	b, begin := NewAccountant(), time.Now()
	b.Observe("a", requestingMember(1, 0, 3), begin)
	p := b.Allocate(rules, begin)
	require.Equal(t, int32(3), grantFor(p, "a").Slots)
	at := func(after time.Duration) MemberAccount {
		f := requestingMember(1, 0, 3)
		f.Silent = true
		b.Observe("a", f, begin.Add(after))
		return accountOf(b.Allocate(rules, begin.Add(after)), "a")
	}
	assert.Equal(t, int32(3), at(5*time.Minute+attemptTimeout).Held)
	assert.Equal(t, v1alpha1.TransfersReserved, at(5*time.Minute+attemptTimeout).Reason)
	assert.Equal(t, int32(0), at(5*time.Minute+attemptTimeout+5*time.Minute).Held)
	assert.Equal(t, v1alpha1.TransfersSafeShare, at(2*attemptTimeout).Reason)
}

func TestLongerAttemptTimeoutCountsBeforeAcknowledgement(t *testing.T) {
	b, begin := NewAccountant(), time.Now()
	b.Observe("a", requestingMember(1, 0, 3), begin)
	b.Allocate(rules, begin)
	f := requestingMember(1, 0, 3)
	planned := *f.PlannedPolicy
	planned.AttemptTimeout = 3 * attemptTimeout
	f.PlannedPolicy, f.PlanAcknowledged = &planned, false
	b.Observe("a", f, begin)
	assert.Equal(t, int32(3), accountOf(b.Allocate(rules, begin.Add(2*attemptTimeout)), "a").Held)
	assert.Equal(t, int32(0), accountOf(b.Allocate(rules, begin.Add(4*attemptTimeout)), "a").Held)
}

func TestGrantIsVoidAfterReboot(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	b.Observe("a", requestingMember(1, 0, 3), now)
	b.Allocate(rules, now)
	f := requestingMember(2, 1, 0)
	f.BootID, f.Transfers.Nonce = "reboot", ""
	b.Observe("a", f, now)
	assert.Equal(t, int32(1), accountOf(b.Allocate(rules, now), "a").Held)
}

func TestReservationOfFormerClusterStays(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	b.Observe("a", requestingMember(1, 0, 3), now)
	b.Allocate(rules, now)
	f := requestingMember(1, 0, 4)
	f.Cluster = "rebuilt"
	b.Observe("a", f, now)
	p := b.Allocate(rules, now)
	assert.Equal(t, int32(1), grantFor(p, "a").Slots, "the other three may be running")
	assert.Equal(t, int64(2), grantFor(p, "a").Sequence, "sequences continue")

	b = NewAccountant()
	b.Observe("a", requestingMember(1, 0, 3), now)
	b.Allocate(rules, now)
	b.RemoveMember("a", now)
	assert.Equal(t, int64(3), b.Allocate(rules, now).Held)
	assert.Zero(t, b.Allocate(rules, now.Add(2*attemptTimeout)).Held)
	b.Observe("b", requestingMember(1, 0, 0), now)
	b.RemoveMember("b", now)
	assert.Empty(t, b.Allocate(rules, now.Add(2*attemptTimeout)).Accounts, "one that has nothing is gone at once")
}

func TestNothingIsRaisedOverBudget(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	b.Observe("a", requestingMember(1, 4, 6), now)
	b.Allocate(rules, now)
	less := rules
	less.Total = 2
	b.Observe("b", requestingMember(1, 0, 2), now)
	p := b.Allocate(less, now)
	assert.Equal(t, int32(1), grantFor(p, "a").Slots)
	assert.Nil(t, grantFor(p, "b"))
	assert.Equal(t, v1alpha1.TransfersOverBudget, accountOf(p, "b").Reason)
}

func TestSafeShareWaitsForRoom(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	b.Observe("a", requestingMember(1, 0, 4), now)
	b.Allocate(rules, now)
	f := idleMember(1)
	f.DesiredPolicy.Safe = 2
	b.Observe("b", f, now)
	p := b.Allocate(rules, now)
	n, known := b.SafeShare("b")
	assert.True(t, known)
	assert.Zero(t, n, "all is granted to the other")
	assert.Equal(t, int32(2), grantFor(p, "a").Slots, "which is asked for it")
	back := requestingMember(2, 1, 4)
	back.Transfers.Grant, back.Transfers.Slots = grantFor(p, "a").Sequence, 2
	b.Observe("a", back, now)
	b.Allocate(rules, now)
	n, _ = b.SafeShare("b")
	assert.Equal(t, int32(2), n)

	// A reduced share counts until a plan without it is acknowledged.
	f.DesiredPolicy.Safe = 0
	given := *f.PlannedPolicy
	given.Safe = 2
	f.PlannedPolicy, f.PlanAcknowledged = &given, false
	b.Observe("b", f, now)
	p = b.Allocate(rules, now)
	n, _ = b.SafeShare("b")
	assert.Zero(t, n)
	assert.Equal(t, int32(2), accountOf(p, "b").Held)
	f = idleMember(2)
	b.Observe("b", f, now)
	b.Allocate(rules, now)
	b.Observe("b", f, now)
	assert.Zero(t, accountOf(b.Allocate(rules, now), "b").Held)
}

func TestNothingIsRaisedWhileLearning(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	f := requestingMember(1, 0, 0)
	f.Learning = true
	b.Observe("a", f, now)
	b.Observe("b", requestingMember(1, 0, 2), now)
	p := b.Allocate(rules, now)
	assert.Nil(t, grantFor(p, "b"))
	assert.Equal(t, v1alpha1.TransfersLearning, accountOf(p, "b").Reason)
}

// A request counts for as long as a grant. An agent requests three times in its last grant, so one
// whose last grant was longer, or that has had none, gets a grant without slots.
func TestWaitingMemberStaysVisible(t *testing.T) {
	short := Rules{Total: 4, Duration: 15 * time.Second}
	b, now := NewAccountant(), time.Now()
	b.Observe("a", requestingMember(1, 0, 4), now)
	require.NotNil(t, grantFor(b.Allocate(short, now), "a"))
	waits := requestingMember(1, 0, 4)
	b.Observe("b", waits, now)
	b.Allocate(short, now) // reduces a
	b.Observe("a", requestingMember(1, 4, 4), now)
	wantGrant := func(rules Rules, want bool, why string) {
		t.Helper()
		g := grantFor(b.Allocate(rules, now), "b")
		require.Equal(t, want, g != nil, why)
		if g != nil {
			assert.Zero(t, g.Slots)
			assert.Equal(t, rules.Duration, g.Duration)
		}
	}
	assert.Equal(t, Grant{Sequence: 1, Nonce: "boot/1", Duration: short.Duration}, b.accounts["b"].lastGrant, "it asks only every 100 s")
	ask := func(report int64, boot string) {
		now = now.Add(5 * time.Second)
		f := requestingMember(report, 0, 4)
		f.BootID, f.Transfers.Nonce = boot, fmt.Sprintf("%s/%d", boot, report)
		b.Observe("b", f, now)
	}
	ask(2, "boot")
	wantGrant(short, false, "it asks every 5 s now")
	ask(3, "next")
	wantGrant(short, true, "its next process asks only every 100 s")
	shorter := Rules{Total: 4, Duration: 16 * time.Second}
	ask(4, "next")
	wantGrant(shorter, false, "it asks more often than it has to")
	shorter.Duration = 14 * time.Second
	ask(5, "next")
	wantGrant(shorter, true, "the duration was lowered")
	ask(6, "next")
	wantGrant(shorter, false, "it knows")
}

func TestGroupsOfSources(t *testing.T) {
	groups := Rules{Total: 10, Duration: 5 * time.Minute, Groups: []Group{{"eu", 3}}}
	asks := func(report int64, wanted, running int32) MemberFacts {
		f := requestingMember(report, running, wanted)
		f.Transfers.Sources = []v1alpha1.SourceDemand{{Name: "eu", Wanted: wanted, Running: running}}
		return f
	}
	b, now := NewAccountant(), time.Now()
	b.Observe("a", asks(1, 3, 0), now)
	p := b.Allocate(groups, now)
	assert.Equal(t, map[string]int32{"eu": 3}, grantFor(p, "a").Sources)
	b.Observe("b", asks(1, 3, 0), now)
	p = b.Allocate(groups, now)
	assert.Less(t, grantFor(p, "a").Sources["eu"], int32(3), "it is taken back")
	assert.Nil(t, grantFor(p, "b"), "and not given before it is free")

	// A member that has not acknowledged the groups may run everything from any of them.
	b = NewAccountant()
	f := requestingMember(1, 2, 0)
	f.SourcesCurrent = false
	b.Observe("a", f, now)
	b.Observe("b", asks(1, 3, 0), now)
	p = b.Allocate(groups, now)
	assert.Equal(t, map[string]int32{"eu": 1}, grantFor(p, "b").Sources)
}

// However many grants a member gets, the tracked ones stay few and cover all of them.
func TestTrackedGrantsAreBounded(t *testing.T) {
	a, now := &account{}, time.Now()
	for i := range 100 {
		a.recordGrant(Grant{Sequence: int64(i), Share: Share{Slots: int32(i % 7)}, Nonce: fmt.Sprintf("boot/%d", i)}, now.Add(time.Duration(i%5)*time.Minute))
	}
	assert.LessOrEqual(t, len(a.grants), maxTrackedGrants)
	s, left := a.maxPossible(now)
	assert.Equal(t, int32(6), s.Slots)
	assert.Equal(t, 4*time.Minute, left)
}

// The cost of one change among a thousand members.
func BenchmarkPlan(b *testing.B) {
	book, now := NewAccountant(), time.Now()
	rules := Rules{Total: 2000, Duration: 5 * time.Minute}
	for i := range 1000 {
		book.Observe(fmt.Sprintf("m%d", i), requestingMember(1, 0, 5), now)
	}
	book.Allocate(rules, now)
	for i := 0; b.Loop(); i++ {
		book.Observe(fmt.Sprintf("m%d", i%1000), requestingMember(int64(i/1000+2), int32(i%3), int32(3+i%4)), now)
		book.Allocate(rules, now)
	}
}
