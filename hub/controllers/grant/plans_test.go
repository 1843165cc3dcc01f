package grant

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/budget"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// unlimitedPlan returns a plan to write over another.
func unlimitedPlan(before *v1alpha1.ClusterPlan) *v1alpha1.ClusterPlan {
	next := before.DeepCopy()
	next.Spec.Policy = map[string]string{"concurrency": "9"}
	next.Spec.Sequence++
	return next
}

// admitPlan reports whether a plan is admitted.
func (s *testHub) admitPlan(next, before *v1alpha1.ClusterPlan) bool {
	admitted, _ := s.Shares.AdmitPlan(next, before)
	return admitted
}

func limitedPlan(before *v1alpha1.ClusterPlan, safe int) *v1alpha1.ClusterPlan {
	next := unlimitedPlan(before)
	next.Spec.Policy["safeConcurrency"] = strconv.Itoa(safe)
	return next
}

// A plan of a deposed leader is refused once anything is granted.
func TestPlanOfDeposedProcessIsRefused(t *testing.T) {
	s := newTestHub(t, "a", "b")
	s.applyPolicy(policyOfFour)
	s.reconcile()
	late := unlimitedPlan(s.getPlan("a"))

	s.elect("second")
	for _, name := range []string{"a", "b"} {
		s.confirm(name, "second")
	}
	s.reportDemand("b", 0, 4)
	s.reconcile()
	assert.Zero(t, s.getGrant("b").Limits.Slots, "the plans were another process's when they were read")
	s.reportDemand("b", 0, 4)
	s.reconcile()
	require.Equal(t, int32(4), s.getGrant("b").Limits.Slots)
	assert.True(t, apierrors.IsConflict(s.live.Update(t.Context(), late)))
}

// A plan that another process may still create counts with all that the policy allows.
func TestUnwrittenPlanOfOtherProcessCounts(t *testing.T) {
	s := newTestHub(t, "a", "b")
	s.applyPolicy(policyOfFour)
	require.NoError(t, s.live.Delete(t.Context(), s.getPlan("a")))
	s.reportDemand("b", 0, 4)
	s.reconcile()
	assert.Zero(t, s.getGrant("b").Limits.Slots)
	s.startedAt = time.Now().Add(-learningTimeout)
	s.reconcile()
	assert.Equal(t, int32(9), s.Shares.ForMember("a").Held)
	assert.Zero(t, s.getGrant("b").Limits.Slots)
}

// What this process plans counts before the cache shows it.
func TestPlanCountsBeforeItIsWritten(t *testing.T) {
	s := newTestHub(t, "a", "b")
	s.applyPolicy(policyOfFour)
	s.reconcile()
	limited := s.policy.policy
	free, _, errs := policy.ParsePolicy(map[string]string{"concurrency": "9"})
	require.Empty(t, errs)
	s.policy.policy = free
	s.reconcile()
	before := s.getPlan("a")
	next := unlimitedPlan(before)
	require.True(t, s.admitPlan(next, before))
	s.policy.policy = limited
	s.reportDemand("b", 0, 4)
	s.reconcile()
	assert.Equal(t, int32(9), s.Shares.ForMember("a").Held)
	assert.Nil(t, s.getGrant("b").Limits)

	assert.False(t, s.admitPlan(unlimitedPlan(s.getPlan("b")), s.getPlan("b")), "there is a budget by now")
	require.NoError(t, s.live.Update(t.Context(), next))
	last := limitedPlan(next, 0)
	require.True(t, s.admitPlan(last, next))
	require.NoError(t, s.live.Update(t.Context(), last))
	s.reports["a"].Report.Plan = &last.Spec.PlanVersion
	s.reportDemand("a", 0, 0)
	s.reportDemand("b", 0, 4)
	s.reconcile()
	assert.Equal(t, int32(4), s.getGrant("b").Limits.Slots)
}

func TestAdmitPlan(t *testing.T) {
	s := newTestHub(t, "a")
	data := map[string]string{"concurrency": "9", "fleetConcurrency": "4", "safeConcurrency": "2"}
	s.applyPolicy(data)
	s.reconcile()
	before := s.getPlan("a")
	safe, known := s.Shares.SafeShare("a")
	require.True(t, known)
	require.Equal(t, int32(2), safe)
	assert.True(t, s.admitPlan(limitedPlan(before, 2), before))
	assert.True(t, s.admitPlan(limitedPlan(before, 1), before))
	assert.False(t, s.admitPlan(limitedPlan(before, 3), before), "there is no room for that")
	assert.False(t, s.admitPlan(unlimitedPlan(before), before))
	assert.True(t, s.admitPlan(unlimitedPlan(before), unlimitedPlan(before)), "it allows no more than the one before")
	marked := limitedPlan(before, 0)
	marked.Annotations = nil
	require.True(t, s.admitPlan(marked, before))
	assert.Equal(t, "first", marked.Annotations[annotationPlanner])

	s.Shares.beginAllocation()
	admitted, busy := s.Shares.AdmitPlan(limitedPlan(before, 2), before)
	assert.False(t, admitted, "it could no longer be counted")
	assert.True(t, busy, "it is no reason to tell anybody")
	s.reconcile()

	// A restored hub continues with the policy that the member has.
	s.reports["a"].Report.Policy = map[string]string{"concurrency": "7"}
	s.reportDemand("a", 0, 0)
	s.reconcile()
	held := unlimitedPlan(before)
	held.Spec.Policy["concurrency"] = "7"
	assert.True(t, s.admitPlan(held, before))
	held.Spec.Policy["concurrency"] = "8"
	assert.False(t, s.admitPlan(held, before))
	held.Spec.Policy["concurrency"], held.Spec.HeldPolicy = "7", "hash"
	assert.False(t, s.admitPlan(held, before), "only the member says that it had this policy")
}

// A plan with a policy that only the member says it had costs the others no more than the fleet's
// policy permits, also after it has been replaced and while the member acknowledges nothing.
func TestHeldPolicyCountsAsTheFleetsAtMost(t *testing.T) {
	s := newTestHub(t, "a")
	held := unlimitedPlan(s.getPlan("a"))
	held.Spec.Policy, held.Spec.HeldPolicy = map[string]string{"concurrency": "256", "attemptTimeout": "48h"}, "hash"
	budget.RecordSuperseded(held, held.DeepCopy(), nil)
	inForce, _, errs := policy.ParsePolicy(map[string]string{"concurrency": "2", "attemptTimeout": "1h", "fleetConcurrency": "4"})
	require.Empty(t, errs)
	state := &memberState{member: &v1alpha1.MemberCluster{}, root: s.reports["a"], plan: held}
	f := (&policyCache{}).buildFacts(state, inForce, nil, time.Now())
	assert.Equal(t, &budget.Bounds{Concurrency: 2, AttemptTimeout: time.Hour}, f.PlannedPolicy)
	assert.Equal(t, &budget.Bounds{Concurrency: 2, AttemptTimeout: time.Hour}, f.SupersededPolicy)

	replaced := limitedPlan(held, 1)
	replaced.Spec.HeldPolicy = ""
	budget.RecordSuperseded(replaced, held, nil)
	superseded := budget.UnacknowledgedBounds(replaced)
	assert.Equal(t, int32(9), superseded.Concurrency, "as the plan that replaces it")
	held.Spec.HeldPolicy = ""
	budget.RecordSuperseded(replaced, held, nil)
	assert.Equal(t, int32(256), budget.UnacknowledgedBounds(replaced).Concurrency, "the hub's own word")
}

// Nor does such a plan before the cache shows it.
func TestHeldPolicyCountsAsTheFleetsBeforeItIsWritten(t *testing.T) {
	s := newTestHub(t, "a")
	before := s.getPlan("a")
	held := unlimitedPlan(before)
	held.Spec.Policy, held.Spec.HeldPolicy = map[string]string{"concurrency": "256"}, "hash"
	require.True(t, s.admitPlan(held, before), "there is no budget yet")
	inForce, _, errs := policy.ParsePolicy(map[string]string{"concurrency": "2", "fleetConcurrency": "4"})
	require.Empty(t, errs)
	state := &memberState{member: &v1alpha1.MemberCluster{}, root: s.reports["a"], plan: before, intents: s.Shares.pendingIntents("a", before)}
	require.Len(t, state.intents, 1)
	f := (&policyCache{}).buildFacts(state, inForce, nil, time.Now())
	assert.Equal(t, int32(2), f.SupersededPolicy.Concurrency)

	s.applyPolicy(policyOfFour)
	s.reconcile()
	assert.True(t, s.admitPlan(held, held), "other images, and the same policy")
	own := held.DeepCopy()
	own.Spec.HeldPolicy = ""
	assert.False(t, s.admitPlan(held, own), "it would count as less than the hub's own")
	less := held.DeepCopy()
	less.Spec.Policy = map[string]string{"concurrency": "200"}
	assert.False(t, s.admitPlan(less, held), "it is planned again with the budget's limits")
}

func TestIntentsGoWithTheirMember(t *testing.T) {
	s := &Shares{}
	next := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-member-a"}}
	admitted, _ := s.AdmitPlan(next, nil)
	require.True(t, admitted)
	require.Len(t, s.pendingIntents("a", nil), 1)
	s.ForgetMember("a")
	assert.Empty(t, s.intents)
}
