package plan_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/plan"
)

// Whatever a member claims to have, the hub can go above it, and the agent can report that: JSON has
// no larger integers exactly than 2^53-1.
func TestClaimsLeaveRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		claim := rapid.OneOf(rapid.SampledFrom([]int64{1 << 52, 1<<52 - 1, 1<<53 - 1, math.MaxInt64}), rapid.Int64Min(0))
		var current *v1alpha1.ClusterPlanSpec
		for range rapid.IntRange(1, 6).Draw(t, "reports") {
			lie := newPlan(planVersion(claim.Draw(t, "epoch"), claim.Draw(t, "sequence")), concurrencyPolicy(5))
			report := acknowledgingReport(lie)
			report.Conditions = []metav1.Condition{policyRefused}
			next, write, _ := plan.Next(plan.Input{
				ClusterUID: uid, ReportClusterUID: uid, Current: current, Report: report, DesiredPolicy: concurrencyPolicy(3),
				NewerMemberPlan: planVersion(claim.Draw(t, "copied epoch"), claim.Draw(t, "copied sequence")),
			})
			if write {
				require.Positive(t, next.Epoch)
				require.LessOrEqual(t, next.Epoch, int64(1)<<52)
				require.LessOrEqual(t, next.Sequence, int64(10))
				current = &next
			}
		}
	})
}

// A plan has so many keys at most: with one more, the API server would refuse it each time.
func TestHeldPolicyFitsIntoPlan(t *testing.T) {
	held := withKey(concurrencyPolicy(3), "retryLimit", "7")
	for i := len(held); i < v1alpha1.MaxPolicyKeys; i++ {
		held = withKey(held, fmt.Sprint("unknown", i), "x")
	}
	next, _, _ := plan.Next(plan.Input{
		ClusterUID: uid, ReportClusterUID: uid, Report: acknowledgingReport(newPlan(planVersion(3, 7), held)), DesiredPolicy: grantsPolicy(5, 1),
	})
	assert.LessOrEqual(t, len(next.Policy), v1alpha1.MaxPolicyKeys)
}
