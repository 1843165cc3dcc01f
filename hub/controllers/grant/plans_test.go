package grant

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/fleet"
)

// unlimitedPlan is one to be written over another.
func unlimitedPlan(before *v1alpha1.ClusterPlan) *v1alpha1.ClusterPlan {
	next := before.DeepCopy()
	next.Spec.Policy = map[string]string{"concurrency": "9"}
	next.Spec.Sequence++
	return next
}

func limitedPlan(before *v1alpha1.ClusterPlan, safe int) *v1alpha1.ClusterPlan {
	next := unlimitedPlan(before)
	next.Spec.Policy["safeConcurrency"] = strconv.Itoa(safe)
	return next
}

// What a deposed process had planned is refused once anything is given.
func TestAPlanOfADeposedProcessIsRefused(t *testing.T) {
	s := newStage(t, "a", "b")
	s.in(fourForAll)
	s.look()
	late := unlimitedPlan(s.planOf("a"))

	s.elect("second")
	for _, name := range []string{"a", "b"} {
		s.confirm(name, "second")
	}
	s.asks("b", 0, 4)
	s.look()
	assert.Zero(t, s.grant("b").Limits.Slots, "the plans were another's when they were looked at")
	s.asks("b", 0, 4)
	s.look()
	require.Equal(t, int32(4), s.grant("b").Limits.Slots)
	assert.True(t, apierrors.IsConflict(s.live.Update(t.Context(), late)))
}

// A plan that another process may yet create counts with all that the policy asks for.
func TestAPlanThatIsNotThereMayStillCome(t *testing.T) {
	s := newStage(t, "a", "b")
	s.in(fourForAll)
	require.NoError(t, s.live.Delete(t.Context(), s.planOf("a")))
	s.asks("b", 0, 4)
	s.look()
	assert.Zero(t, s.grant("b").Limits.Slots)
	s.began = time.Now().Add(-learning)
	s.look()
	assert.Equal(t, int32(9), s.Shares.Of("a").Held)
	assert.Zero(t, s.grant("b").Limits.Slots)
}

// What this process plans is counted before the cache shows it.
func TestAPlanIsCountedBeforeItIsWritten(t *testing.T) {
	s := newStage(t, "a", "b")
	s.in(fourForAll)
	s.look()
	limited := s.policy.policy
	free, _, errs := fleet.ParsePolicy(map[string]string{"concurrency": "9"})
	require.Empty(t, errs)
	s.policy.policy = free
	s.look()
	before := s.planOf("a")
	next := unlimitedPlan(before)
	require.True(t, s.Shares.Plan(next, before))
	s.policy.policy = limited
	s.asks("b", 0, 4)
	s.look()
	assert.Equal(t, int32(9), s.Shares.Of("a").Held)
	assert.Nil(t, s.grant("b").Limits)

	assert.False(t, s.Shares.Plan(unlimitedPlan(s.planOf("b")), s.planOf("b")), "there is a budget by now")
	require.NoError(t, s.live.Update(t.Context(), next))
	last := limitedPlan(next, 0)
	require.True(t, s.Shares.Plan(last, next))
	require.NoError(t, s.live.Update(t.Context(), last))
	s.reports["a"].Report.Plan = &last.Spec.PlanVersion
	s.asks("a", 0, 0)
	s.asks("b", 0, 4)
	s.look()
	assert.Equal(t, int32(4), s.grant("b").Limits.Slots)
}

func TestWhatMayBePlanned(t *testing.T) {
	s := newStage(t, "a")
	data := map[string]string{"concurrency": "9", "fleetConcurrency": "4", "safeConcurrency": "2"}
	s.in(data)
	s.look()
	before := s.planOf("a")
	safe, known := s.Shares.Safe("a")
	require.True(t, known)
	require.Equal(t, int32(2), safe)
	assert.True(t, s.Shares.Plan(limitedPlan(before, 2), before))
	assert.True(t, s.Shares.Plan(limitedPlan(before, 1), before))
	assert.False(t, s.Shares.Plan(limitedPlan(before, 3), before), "there is no room for that")
	assert.False(t, s.Shares.Plan(unlimitedPlan(before), before))
	assert.True(t, s.Shares.Plan(unlimitedPlan(before), unlimitedPlan(before)), "it allows no more than the one before")
	marked := limitedPlan(before, 0)
	marked.Annotations = nil
	require.True(t, s.Shares.Plan(marked, before))
	assert.Equal(t, "first", marked.Annotations[annotationPlanner])

	s.Shares.look()
	assert.False(t, s.Shares.Plan(limitedPlan(before, 2), before), "it could not be counted any more")
	s.look()

	// A hub that was restored goes on with the policy that the member has.
	s.reports["a"].Report.Policy = map[string]string{"concurrency": "7"}
	s.asks("a", 0, 0)
	s.look()
	held := unlimitedPlan(before)
	held.Spec.Policy["concurrency"] = "7"
	assert.True(t, s.Shares.Plan(held, before))
	held.Spec.Policy["concurrency"] = "8"
	assert.False(t, s.Shares.Plan(held, before))
}
