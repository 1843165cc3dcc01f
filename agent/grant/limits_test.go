package grant_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// groupByPrefix maps a host to the group that its name begins with.
func groupByPrefix(host string) string {
	group, _, _ := strings.Cut(host, ".")
	return group
}

func runningSlots(hosts ...string) []v1alpha1.Slot {
	slots := make([]v1alpha1.Slot, len(hosts))
	for i, host := range hosts {
		slots[i] = v1alpha1.Slot{Host: host, DataVolume: fmt.Sprint(i)}
	}
	return slots
}

func waitingItems(groups ...string) []ledger.QueuedImage {
	items := make([]ledger.QueuedImage, len(groups))
	for i, group := range groups {
		items[i] = ledger.QueuedImage{Image: v1alpha1.ImageKey{UID: types.UID(fmt.Sprint(i))}, SourceGroup: group}
	}
	return items
}

func TestTermsFromPolicy(t *testing.T) {
	p := policy.Default()
	assert.Equal(t, grant.Terms{}, grant.TermsFromPolicy(nil))
	assert.Equal(t, grant.Terms{Concurrency: 3}, grant.TermsFromPolicy(&p))
	p.SafeConcurrency, p.Sources = 1, policy.Sources{{Name: "cdn", Hosts: []string{"*.example.com"}}}
	assert.Equal(t, grant.Terms{Concurrency: 3}, grant.TermsFromPolicy(&p), "ignored without a fleet-wide budget")
	assert.Empty(t, grant.SourceGroupFunc(&p)("a.example.com"))
	p.UsesGrants = true
	assert.Equal(t, grant.Terms{Concurrency: 3, FleetLimited: true, SafeConcurrency: 1, SourceGroups: []string{"cdn"}}, grant.TermsFromPolicy(&p))
	assert.Equal(t, "cdn", grant.SourceGroupFunc(&p)("a.example.com"))
	assert.Empty(t, grant.SourceGroupFunc(&p)("example.org"))
}

func TestComputeLimits(t *testing.T) {
	inForce := func(slots int32, sources ...v1alpha1.SourceGrant) grant.Share {
		return grant.Share{Sequence: 1, InForce: true, ValidUntil: time.Minute, Slots: slots, Sources: sources}
	}
	cdn := []string{"cdn"}
	for name, tt := range map[string]struct {
		terms grant.Terms
		share grant.Share
		want  grant.Limits
	}{
		"no fleet-wide budget":        {grant.Terms{Concurrency: 5}, inForce(2), grant.Limits{Budget: 5}},
		"no grant, no safe share":     {grant.Terms{Concurrency: 5, FleetLimited: true}, grant.Share{}, grant.Limits{SourceGroupLimits: map[string]int32{}}},
		"no grant":                    {grant.Terms{Concurrency: 5, FleetLimited: true, SafeConcurrency: 2}, grant.Share{}, grant.Limits{Budget: 2, SourceGroupLimits: map[string]int32{}}},
		"granted":                     {grant.Terms{Concurrency: 5, FleetLimited: true, SafeConcurrency: 2}, inForce(4), grant.Limits{Budget: 4, SourceGroupLimits: map[string]int32{}, ValidUntil: time.Minute}},
		"less than the safe share":    {grant.Terms{Concurrency: 5, FleetLimited: true, SafeConcurrency: 2}, inForce(1), grant.Limits{Budget: 2, SourceGroupLimits: map[string]int32{}, ValidUntil: time.Minute}},
		"more than the policy":        {grant.Terms{Concurrency: 5, FleetLimited: true}, inForce(9), grant.Limits{Budget: 5, SourceGroupLimits: map[string]int32{}, ValidUntil: time.Minute}},
		"a paused policy":             {grant.Terms{FleetLimited: true, SafeConcurrency: 2}, inForce(9), grant.Limits{SourceGroupLimits: map[string]int32{}, ValidUntil: time.Minute}},
		"a group without a grant":     {grant.Terms{Concurrency: 5, FleetLimited: true, SafeConcurrency: 2, SourceGroups: cdn}, grant.Share{}, grant.Limits{Budget: 2, SourceGroupLimits: map[string]int32{"cdn": 0}}},
		"a group with a grant":        {grant.Terms{Concurrency: 5, FleetLimited: true, SourceGroups: cdn}, inForce(4, v1alpha1.SourceGrant{Name: "cdn", Slots: 3}), grant.Limits{Budget: 4, SourceGroupLimits: map[string]int32{"cdn": 3}, ValidUntil: time.Minute}},
		"a grant of an unknown group": {grant.Terms{Concurrency: 5, FleetLimited: true, SourceGroups: cdn}, inForce(4, v1alpha1.SourceGrant{Name: "other", Slots: 3}), grant.Limits{Budget: 4, SourceGroupLimits: map[string]int32{"cdn": 0}, ValidUntil: time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, grant.ComputeLimits(tt.terms, tt.share))
		})
	}
}

func TestLimitsCovers(t *testing.T) {
	four := grant.Limits{Budget: 4, SourceGroupLimits: map[string]int32{"cdn": 2}, ValidUntil: 1}
	for name, tt := range map[string]struct {
		now  grant.Limits
		want bool
	}{
		"the same":                {four, true},
		"more":                    {grant.Limits{Budget: 5, SourceGroupLimits: map[string]int32{"cdn": 3}}, true},
		"fewer slots":             {grant.Limits{Budget: 3, SourceGroupLimits: map[string]int32{"cdn": 2}}, false},
		"a lower group limit":     {grant.Limits{Budget: 4, SourceGroupLimits: map[string]int32{"cdn": 1}}, false},
		"a group that is missing": {grant.Limits{Budget: 4, SourceGroupLimits: map[string]int32{}}, false},
		"without limits":          {grant.Limits{Budget: 4}, false},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, tt.now.Covers(four))
		})
	}
}

func TestComputeDemand(t *testing.T) {
	groups := []string{"b", "a"}
	for name, tt := range map[string]struct {
		concurrency int32
		running     []v1alpha1.Slot
		front       []ledger.QueuedImage
		room        map[string]int32
		want        grant.Demand
	}{
		"nothing":                                    {3, nil, nil, nil, grant.Demand{}},
		"running":                                    {3, runningSlots("", "a.x"), nil, nil, grant.Demand{Wanted: 2, Sources: []v1alpha1.SourceDemand{{Name: "a", Running: 1, Wanted: 1}}}},
		"at most the policy's concurrency":           {3, runningSlots(""), waitingItems("", "a", "b"), nil, grant.Demand{Wanted: 3, Sources: []v1alpha1.SourceDemand{{Name: "a", Wanted: 1}}}},
		"all that run":                               {1, runningSlots("", "b.y"), waitingItems("a"), nil, grant.Demand{Wanted: 2, Sources: []v1alpha1.SourceDemand{{Name: "b", Running: 1, Wanted: 1}}}},
		"in the plan's order":                        {9, runningSlots("a.x"), waitingItems("b", "a", "other"), nil, grant.Demand{Wanted: 4, Sources: []v1alpha1.SourceDemand{{Name: "b", Wanted: 1}, {Name: "a", Running: 1, Wanted: 2}}}},
		"images pass those of a full group":          {3, nil, waitingItems("a", "a", "a", "b", ""), map[string]int32{"a": 0}, grant.Demand{Wanted: 3, Sources: []v1alpha1.SourceDemand{{Name: "b", Wanted: 1}, {Name: "a", Wanted: 1}}}},
		"one more than the room of a group":          {3, runningSlots("a.x"), waitingItems("a", "a", "a", ""), map[string]int32{"a": 1}, grant.Demand{Wanted: 4, Sources: []v1alpha1.SourceDemand{{Name: "a", Running: 1, Wanted: 3}}}},
		"one of a full group, with all slots in use": {1, runningSlots(""), waitingItems("a", "a", ""), map[string]int32{"a": 0}, grant.Demand{Wanted: 2, Sources: []v1alpha1.SourceDemand{{Name: "a", Wanted: 1}}}},
		"paused":                          {0, nil, waitingItems("a", ""), map[string]int32{"a": 0}, grant.Demand{}},
		"more run than the policy allows": {1, runningSlots("", ""), waitingItems("a", ""), map[string]int32{"a": 0}, grant.Demand{Wanted: 2}},
		"no more than a ledger's slots":   {v1alpha1.MaxSlots, nil, waitingItems(append(make([]string, v1alpha1.MaxSlots-1), "a", "")...), map[string]int32{"a": 0}, grant.Demand{Wanted: v1alpha1.MaxSlots, Sources: []v1alpha1.SourceDemand{{Name: "a", Wanted: 1}}}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, grant.ComputeDemand(grant.Terms{Concurrency: tt.concurrency, SourceGroups: groups}, tt.running, groupByPrefix, tt.front, tt.room))
		})
	}
}

func TestRoomByGroup(t *testing.T) {
	terms := grant.Terms{Concurrency: 9, FleetLimited: true, SourceGroups: []string{"a", "b"}}
	granted := grant.Share{InForce: true, Slots: 4, Sources: []v1alpha1.SourceGrant{{Name: "a", Slots: 3}}}
	full := granted
	full.FullyGranted = []string{"a"}
	for name, tt := range map[string]struct {
		terms   grant.Terms
		share   grant.Share
		running []v1alpha1.Slot
		want    map[string]int32
	}{
		"no fleet-wide budget":     {grant.Terms{Concurrency: 9, SourceGroups: terms.SourceGroups}, granted, nil, nil},
		"no groups":                {grant.Terms{Concurrency: 9, FleetLimited: true}, granted, nil, nil},
		"no grant":                 {terms, grant.Share{}, nil, map[string]int32{"a": 0, "b": 0}},
		"less than was requested":  {terms, granted, runningSlots("a.x", ""), map[string]int32{"a": 2, "b": 0}},
		"all that was requested":   {terms, full, runningSlots("a.x"), map[string]int32{"b": 0}},
		"more run than is granted": {terms, grant.Share{}, runningSlots("a.x"), map[string]int32{"a": 0, "b": 0}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, grant.RoomByGroup(tt.terms, tt.share, tt.running, groupByPrefix))
		})
	}
}

func TestWithheldReasons(t *testing.T) {
	fleet, source := v1alpha1.ReasonWaitingForFleet, v1alpha1.ReasonWaitingForSource
	limits := grant.Limits{Budget: 2, SourceGroupLimits: map[string]int32{"a": 1}}
	for name, tt := range map[string]struct {
		terms   grant.Terms
		running []v1alpha1.Slot
		front   []ledger.QueuedImage
		want    map[types.UID]v1alpha1.Reason
	}{
		"no fleet-wide budget":            {grant.Terms{Concurrency: 9}, runningSlots("", ""), waitingItems(""), nil},
		"about to be admitted":            {grant.Terms{Concurrency: 9, FleetLimited: true}, runningSlots(""), waitingItems(""), map[types.UID]v1alpha1.Reason{}},
		"the grant is used up":            {grant.Terms{Concurrency: 9, FleetLimited: true}, runningSlots("", ""), waitingItems("", "a"), map[types.UID]v1alpha1.Reason{"0": fleet, "1": fleet}},
		"the group's grant is used up":    {grant.Terms{Concurrency: 9, FleetLimited: true}, runningSlots("a.x"), waitingItems("a", ""), map[types.UID]v1alpha1.Reason{"0": source}},
		"both are used up":                {grant.Terms{Concurrency: 9, FleetLimited: true}, runningSlots("a.x", ""), waitingItems("a", ""), map[types.UID]v1alpha1.Reason{"0": source, "1": fleet}},
		"beyond the policy's concurrency": {grant.Terms{Concurrency: 3, FleetLimited: true}, runningSlots("a.x", ""), waitingItems("", ""), map[types.UID]v1alpha1.Reason{"0": fleet}},
		"passed by others":                {grant.Terms{Concurrency: 4, FleetLimited: true}, runningSlots("a.x", ""), waitingItems("a", "a", "a", "", "", ""), map[types.UID]v1alpha1.Reason{"0": source, "1": source, "2": source, "3": fleet, "4": fleet}},
		"passed while all slots are used": {grant.Terms{Concurrency: 2, FleetLimited: true}, runningSlots("a.x", ""), waitingItems("a", ""), map[types.UID]v1alpha1.Reason{"0": source}},
		"paused":                          {grant.Terms{FleetLimited: true}, nil, waitingItems("a", ""), nil},
		"more run than the policy allows": {grant.Terms{Concurrency: 1, FleetLimited: true}, runningSlots("a.x", ""), waitingItems("", ""), map[types.UID]v1alpha1.Reason{}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, grant.WithheldReasons(tt.terms, limits, tt.running, groupByPrefix, tt.front))
		})
	}
}

func TestNewReportedTransfers(t *testing.T) {
	terms := grant.Terms{Concurrency: 9, FleetLimited: true, SafeConcurrency: 1, SourceGroups: []string{"a", "b"}}
	st := &v1alpha1.SyncLedgerStatus{
		Slots: runningSlots("a.x", "a.y"),
		Grant: &v1alpha1.LedgerGrant{BootID: "boot", Sequence: 7, Slots: 2},
	}
	got := grant.NewReportedTransfers(terms, st, groupByPrefix, grant.Demand{Wanted: 1, Sources: []v1alpha1.SourceDemand{{Name: "b", Wanted: 1}, {Name: "a", Wanted: 1}}}, "boot/1")
	assert.Equal(t, &v1alpha1.ReportedTransfers{
		Limited: true, Safe: 1, Nonce: "boot/1", Wanted: 2, Grant: 7, Slots: 2,
		Sources: []v1alpha1.SourceDemand{{Name: "a", Running: 2, Wanted: 2}, {Name: "b", Wanted: 1}},
	}, got, "at least what runs")
	assert.Equal(t, &v1alpha1.ReportedTransfers{Wanted: 1}, grant.NewReportedTransfers(grant.Terms{Concurrency: 9, SafeConcurrency: 1}, nil, groupByPrefix, grant.Demand{Wanted: 1}, ""))
}

func TestGrantedCondition(t *testing.T) {
	terms := grant.Terms{Concurrency: 9, FleetLimited: true, SafeConcurrency: 1, SourceGroups: []string{"cdn"}}
	for name, tt := range map[string]struct {
		terms   grant.Terms
		share   grant.Share
		wanted  int32
		isTrue  bool
		reason  string
		message string
	}{
		"not limited": {grant.Terms{}, grant.Share{}, 1, true, v1alpha1.ReasonNoFleetBudget, "the policy's concurrency applies"},
		"in force": {terms, grant.Share{Sequence: 4, InForce: true, Slots: 3, Sources: []v1alpha1.SourceGrant{{Name: "cdn", Slots: 2}}}, 1, true, v1alpha1.ReasonGrantInForce,
			"grant 4 of the hub: 3 imports at a time, 2 of them from cdn; at most 1 run without one (safeConcurrency), none from cdn"},
		"nothing to do": {terms, grant.Share{Expired: true}, 0, true, v1alpha1.ReasonNothingWanted, "no grant is requested"},
		"awaited":       {terms, grant.Share{}, 1, false, v1alpha1.ReasonAwaitingGrant, "waiting for the hub's grant; at most 1 run without one"},
		"expired":       {terms, grant.Share{Expired: true}, 1, false, v1alpha1.ReasonGrantEnded, "the hub's grant has expired"},
	} {
		t.Run(name, func(t *testing.T) {
			isTrue, reason, message := grant.GrantedCondition(tt.terms, tt.share, tt.wanted)
			assert.Equal(t, tt.isTrue, isTrue)
			assert.Equal(t, tt.reason, reason)
			assert.Contains(t, message, tt.message)
		})
	}
}

// Whatever the queue, a step of the ledger admits no more than the policy, the larger of
// grant and safe share, and for each group its grant.
func TestSlotsNeverExceedShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		terms := grant.Terms{
			Concurrency: rapid.Int32Range(0, 6).Draw(t, "concurrency"), FleetLimited: rapid.Bool().Draw(t, "limited"),
			SafeConcurrency: rapid.Int32Range(0, 3).Draw(t, "safe"), SourceGroups: []string{"a", "b"},
		}
		share := grant.Share{InForce: rapid.Bool().Draw(t, "in force"), ValidUntil: 1}
		if share.InForce {
			share.Slots = rapid.Int32Range(0, 6).Draw(t, "slots")
			share.Sources = []v1alpha1.SourceGrant{{Name: "a", Slots: rapid.Int32Range(0, 3).Draw(t, "a")}}
		}
		limits := grant.ComputeLimits(terms, share)
		host := rapid.SampledFrom([]string{"", "a.x", "a.y", "b.x"})
		v := ledger.View{Ledger: &v1alpha1.SyncLedgerStatus{Budget: 9}, Budget: limits.Budget, SourceGroupLimits: limits.SourceGroupLimits, SourceGroupOf: groupByPrefix}
		for i := range rapid.IntRange(0, 4).Draw(t, "running") {
			v.Ledger.Slots = append(v.Ledger.Slots, v1alpha1.Slot{
				Image: v1alpha1.ImageKey{UID: types.UID(fmt.Sprint("run", i))}, DataVolume: fmt.Sprint("dv", i), Host: host.Draw(t, "running host"),
			})
		}
		for i := range rapid.IntRange(0, 6).Draw(t, "waiting") {
			v.Candidates = append(v.Candidates, ledger.Candidate{
				Image: v1alpha1.ImageKey{UID: types.UID(fmt.Sprint("wait", i)), Name: "i"}, Attempt: 1, Host: host.Draw(t, "host"),
			})
		}
		got := ledger.Decide(v)
		if len(got.Admitted) == 0 {
			return
		}
		require.LessOrEqual(t, len(got.Slots), int(terms.Concurrency))
		if !terms.FleetLimited {
			return
		}
		require.LessOrEqual(t, len(got.Slots), int(max(terms.SafeConcurrency, share.Slots)))
		started, running := map[string]bool{}, map[string]int32{}
		for _, slot := range got.Admitted {
			started[groupByPrefix(slot.Host)] = true
		}
		for _, slot := range got.Slots {
			running[groupByPrefix(slot.Host)]++
		}
		for _, group := range terms.SourceGroups {
			if started[group] {
				require.LessOrEqual(t, running[group], limits.SourceGroupLimits[group])
				require.True(t, share.InForce, "no import of a group starts without a grant")
			}
		}
	})
}
