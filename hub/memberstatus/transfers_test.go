package memberstatus_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
			if tt.want == "" {
				assert.Nil(t, c)
				return
			}
			require.NotNil(t, c)
			assert.Equal(t, tt.want, c.Status)
			assert.Equal(t, tt.reason, c.Reason)
			assert.Equal(t, tt.want == metav1.ConditionTrue, meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionReady))
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
