package memberstatus_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

func TestTransfersAccounted(t *testing.T) {
	for name, tt := range map[string]struct {
		transfers *v1alpha1.MemberTransfers
		want      metav1.ConditionStatus
		reason    string
	}{
		"no budget":       {nil, "", ""},
		"within its plan": {&v1alpha1.MemberTransfers{Held: 3}, metav1.ConditionTrue, v1alpha1.ReasonWithinGrants},
		"beyond it":       {&v1alpha1.MemberTransfers{Held: 3, Excess: 253}, metav1.ConditionFalse, v1alpha1.ReasonReportedSlotsExceedGrants},
	} {
		t.Run(name, func(t *testing.T) {
			status, _ := memberstatus.Compute(healthyInputWith(func(v *memberstatus.Input) { v.Transfers = tt.transfers }))
			c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionTransfersAccounted)
			apitest.AssertCondition(t, c, tt.want, tt.reason, "")
			assert.Equal(t, tt.want != metav1.ConditionFalse, meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionReady))
		})
	}
}

// A member that joins with a higher concurrency of its own is no liar. One that has
// acknowledged a plan or was found to exceed its grants is not joining.
func TestTransfersOfJoiningMember(t *testing.T) {
	exceeding := metav1.Condition{Type: v1alpha1.ConditionTransfersAccounted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonReportedSlotsExceedGrants}
	for name, tt := range map[string]struct {
		change func(v *memberstatus.Input)
		want   metav1.ConditionStatus
	}{
		"joining":                    {func(*memberstatus.Input) {}, metav1.ConditionUnknown},
		"no excess":                  {func(v *memberstatus.Input) { v.Transfers.Excess = 0 }, metav1.ConditionTrue},
		"acknowledges a plan":        {func(v *memberstatus.Input) { v.Report.Plan = &v1alpha1.PlanVersion{Sequence: 1} }, metav1.ConditionFalse},
		"acknowledged one":           {func(v *memberstatus.Input) { v.Member.Status.AcknowledgedPlan = &v1alpha1.PlanVersion{Sequence: 1} }, metav1.ConditionFalse},
		"was found to exceed grants": {func(v *memberstatus.Input) { v.Member.Status.Conditions = []metav1.Condition{exceeding} }, metav1.ConditionFalse},
	} {
		t.Run(name, func(t *testing.T) {
			status, _ := memberstatus.Compute(healthyInputWith(func(v *memberstatus.Input) {
				v.Report.Plan, v.Transfers = nil, &v1alpha1.MemberTransfers{Held: 9, Excess: 5}
				tt.change(v)
			}))
			c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionTransfersAccounted)
			require.NotNil(t, c)
			assert.Equal(t, tt.want, c.Status)
			assert.Equal(t, tt.want == metav1.ConditionFalse, strings.Contains(c.Message, "quarantine"))
			ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
			assert.NotContains(t, ready.Message, "quarantine", "PolicyAcknowledged comes first")
		})
	}
}

func TestQuarantinedMember(t *testing.T) {
	v := withStoredStatus(healthyInputWith(func(v *memberstatus.Input) {
		v.Member.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "it reports 256 imports"}
	}))
	ready := meta.FindStatusCondition(v.Member.Status.Conditions, v1alpha1.ConditionReady)
	assert.Equal(t, v1alpha1.ReasonQuarantined, ready.Reason)
	assert.Contains(t, ready.Message, "it reports 256 imports")
	assert.Equal(t, v1alpha1.ReasonQuarantined, memberstatus.StaleReason(v.Member), "what is known of it may be wrong")

	v.Member.Spec.Quarantine = nil
	status, _ := memberstatus.Compute(v)
	assert.Nil(t, meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionQuarantined))
	assert.True(t, meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionReady))
}
