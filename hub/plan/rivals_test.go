package plan_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/plan"
)

// rivalBug is a bug that the model of two hubs can have, to prove that it would be found.
type rivalBug int

const (
	noRivalBug rivalBug = iota
	raisesWithoutEnd
	neverTakesOver
)

// rivalHub is one of two hubs that have the same member: one was restored from a backup of
// the other, or the member was joined to it while it had not left the other.
type rivalHub struct {
	policy map[string]string
	plan   *v1alpha1.ClusterPlanSpec
	raises plan.Raises
	count  int
}

type rivalModel struct {
	bug    rivalBug
	now    time.Time
	hubs   [2]rivalHub
	copied *v1alpha1.ClusterPlanSpec
	// acknowledged by the member; nil for none.
	acknowledged *v1alpha1.ClusterPlanSpec
}

func newRivalModel(bug rivalBug) *rivalModel {
	m := &rivalModel{bug: bug, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	m.hubs[0].policy, m.hubs[1].policy = map[string]string{"concurrency": "3"}, map[string]string{"concurrency": "5"}
	return m
}

func (m *rivalModel) plan(hub *rivalHub) {
	v := plan.Input{
		ClusterUID: "here", ReportClusterUID: "here", Report: &v1alpha1.ReportRoot{}, Current: hub.plan,
		DesiredPolicy: hub.policy, PolicySource: "its ConfigMap", Contested: hub.raises.Contested("m", m.now) > 0,
		Images: []v1alpha1.PlannedImage{{Namespace: "ns", Name: "image-" + hub.policy["concurrency"]}},
	}
	if a := m.acknowledged; a != nil {
		v.Report.Plan, v.Report.PlanPolicy = &a.PlanVersion, a.Policy
	}
	if m.copied != nil && (hub.plan == nil || m.copied.Compare(hub.plan.PlanVersion) > 0) {
		v.NewerMemberPlan = m.copied.PlanVersion
	}
	switch m.bug {
	case raisesWithoutEnd:
		v.Contested = false
	case neverTakesOver:
		v.Contested = hub.count > 0
	}
	next, write, _ := plan.Next(v)
	if !write {
		return
	}
	if plan.IsRaise(&next, hub.plan) {
		hub.count++
		hub.raises.Record("m", m.now)
	}
	hub.plan = &next
}

func (m *rivalModel) relay(hub *rivalHub) {
	if hub.plan != nil && (m.copied == nil || hub.plan.Compare(m.copied.PlanVersion) > 0) {
		m.copied = hub.plan
	}
}

func (m *rivalModel) step(n int) {
	switch hub := &m.hubs[n%2]; {
	case n < 2:
		m.plan(hub)
	case n < 4:
		m.relay(hub)
	default:
		m.acknowledged = m.copied
	}
}

// run lets both hubs work, then the first one alone, and returns what is wrong; empty if
// nothing is. choose returns a number below n.
func (m *rivalModel) run(choose func(n int) int) string {
	for range 400 {
		m.step(choose(5))
	}
	if m.hubs[0].count+m.hubs[1].count > 12 {
		return "two hubs raise the plan above each other without end"
	}
	m.now = m.now.Add(30 * time.Minute)
	for range 3 {
		for _, n := range []int{0, 2, 4} {
			m.step(n)
		}
	}
	if m.acknowledged != m.hubs[0].plan {
		return "the hub that is left does not take over"
	}
	return ""
}

func TestTwoHubsOfOneMember(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		steps := rapid.IntRange(0, 4)
		require.Empty(t, newRivalModel(noRivalBug).run(func(int) int { return steps.Draw(t, "step") }))
	})
}

func TestModelOfTwoHubsFindsPlantedBugs(t *testing.T) {
	for bug, want := range map[rivalBug]string{
		raisesWithoutEnd: "two hubs raise the plan above each other without end",
		neverTakesOver:   "the hub that is left does not take over",
	} {
		found := ""
		for seed := uint64(0); seed < 50 && found != want; seed++ {
			found = newRivalModel(bug).run(rand.New(rand.NewPCG(seed, 1)).IntN)
		}
		assert.Equal(t, want, found)
	}
}

func TestRaisesAreCountedWithinAWindow(t *testing.T) {
	var raises plan.Raises
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 6 {
		assert.Zero(t, raises.Contested("a", now), i)
		raises.Record("a", now)
		now = now.Add(time.Minute)
	}
	assert.Equal(t, 24*time.Minute, raises.Contested("a", now))
	assert.Zero(t, raises.Contested("b", now), "another member")
	now = now.Add(24 * time.Minute)
	assert.Zero(t, raises.Contested("a", now))
	raises.Record("a", now)
	assert.Equal(t, time.Minute, raises.Contested("a", now), "until the next one is out of the window")
	raises.Forget("a")
	assert.Zero(t, raises.Contested("a", now))
}

func TestPlanStaysWhileContested(t *testing.T) {
	current := &v1alpha1.ClusterPlanSpec{ClusterUID: "here", PlanVersion: v1alpha1.PlanVersion{Epoch: 2, Sequence: 4}, Policy: map[string]string{"concurrency": "1"}}
	v := plan.Input{
		ClusterUID: "here", ReportClusterUID: "here", Current: current, DesiredPolicy: map[string]string{"concurrency": "2"}, Contested: true,
		Report: &v1alpha1.ReportRoot{Plan: &v1alpha1.PlanVersion{Epoch: 3, Sequence: 1}}, Inquiries: []types.UID{"a"},
	}
	next, write, _ := plan.Next(v)
	assert.False(t, write)
	assert.Equal(t, *current, next)

	v.Report.Plan = &v1alpha1.PlanVersion{Epoch: 2, Sequence: 4}
	next, write, _ = plan.Next(v)
	assert.True(t, write, "the plan that is in force is changed as ever")
	assert.Equal(t, v1alpha1.PlanVersion{Epoch: 2, Sequence: 5, Hash: next.Hash}, next.PlanVersion)
}
