package memberstatus_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// What keeps a member from the fleet's policy shows in PolicyAcknowledged and in Ready, whose
// message is a column, and makes neither False: the member does what it should.
func TestNotesAboutPolicy(t *testing.T) {
	planned := func(v *memberstatus.Input) {
		v.Plan = newPlan(planVersion(1, 4), concurrencyPolicy(8))
		v.DesiredPolicy = concurrencyPolicy(8)
		v.Report.Plan, v.Report.PlanPolicy = &v.Plan.PlanVersion, concurrencyPolicy(8)
	}
	const held = "; concurrency 8, held to 3 by the member's own ConfigMap: remove key concurrency there to follow the hub"
	for name, tt := range map[string]struct {
		change  func(*memberstatus.Input)
		want    string // suffix of the messages
		wantOwn *int32
	}{
		"nothing": {func(v *memberstatus.Input) {}, "", nil},
		"its own limit is higher": {func(v *memberstatus.Input) {
			planned(v)
			v.Report.OwnConcurrency = ptr.To[int32](9)
		}, "", ptr.To[int32](9)},
		"its own limit is lower": {func(v *memberstatus.Input) {
			planned(v)
			v.Report.OwnConcurrency = ptr.To[int32](3)
		}, held, ptr.To[int32](3)},
		"an older agent runs less than planned": {func(v *memberstatus.Input) {
			planned(v)
			v.Report.Policy = concurrencyPolicy(3)
		}, held, ptr.To[int32](3)},
		"it runs less than planned, and sets no limit of its own": {func(v *memberstatus.Input) {
			planned(v)
			v.Report.Policy, v.Report.OwnConcurrencyUnset = concurrencyPolicy(3), true
		}, "", nil},
		"an older agent runs what is planned": {func(v *memberstatus.Input) {
			planned(v)
			v.Report.Policy = concurrencyPolicy(8)
		}, "", nil},
		"an older agent with a policy that nobody understands": {func(v *memberstatus.Input) {
			planned(v)
			v.Report.Policy = map[string]string{"concurrency": "-1"}
		}, "", nil},
		"its own ConfigMap is invalid": {func(v *memberstatus.Input) {
			v.Report.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPolicyAccepted, Status: metav1.ConditionFalse, Reason: "Invalid", Message: "ConfigMap a/b is not used: x"}}
		}, "; in the member, ConfigMap a/b is not used: x", nil},
		"the fleet's ConfigMap is invalid": {func(v *memberstatus.Input) { v.PolicyRefused = "ConfigMap c/d is not used: y" },
			"; on the hub, ConfigMap c/d is not used: y", nil},
		"all at once": {func(v *memberstatus.Input) {
			planned(v)
			v.Report.OwnConcurrency = ptr.To[int32](3)
			v.Report.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPolicyAccepted, Status: metav1.ConditionFalse, Message: strings.Repeat("x", 8000)}}
			v.PolicyRefused = "ConfigMap c/d is not used"
		}, "; on the hub, ConfigMap c/d is not used", ptr.To[int32](3)},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := memberstatus.Compute(healthyInputWith(tt.change))
			assert.Equal(t, tt.wantOwn, got.OwnConcurrency)
			for condition, start := range map[string]string{
				v1alpha1.ConditionPolicyAcknowledged: "the member runs plan 4 (fleet default)",
				v1alpha1.ConditionReady:              "the member is reachable, reports, and runs its newest plan",
			} {
				c := meta.FindStatusCondition(got.Conditions, condition)
				require.NotNil(t, c, condition)
				assert.Equal(t, metav1.ConditionTrue, c.Status, c.Message)
				assert.True(t, strings.HasPrefix(c.Message, start), c.Message)
				assert.True(t, strings.HasSuffix(c.Message, tt.want), c.Message)
				if tt.want == "" {
					assert.Equal(t, start, c.Message)
				}
			}
		})
	}
}

// The first policy of a fleet may be invalid: then it exists, and creating it is no advice.
func TestInvalidFirstPolicyIsNamed(t *testing.T) {
	for name, change := range map[string]func(*memberstatus.Input){
		"without a plan":    func(v *memberstatus.Input) { v.Plan, v.DesiredPolicy = nil, nil },
		"the plan has none": func(v *memberstatus.Input) { v.Plan, v.DesiredPolicy = newPlan(planVersion(1, 4), nil), nil },
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := memberstatus.Compute(healthyInputWith(func(v *memberstatus.Input) {
				change(v)
				v.PolicyRefused = `ConfigMap a/b is not used: concurrency: "four" is not a whole number from 0 to 256.`
			}))
			for _, of := range []string{v1alpha1.ConditionPolicyAcknowledged, v1alpha1.ConditionReady} {
				c := meta.FindStatusCondition(got.Conditions, of)
				assert.Equal(t, v1alpha1.ReasonNoPolicy, c.Reason)
				assert.Contains(t, c.Message, `concurrency: "four" is not a whole number`)
				assert.NotContains(t, c.Message, "create ConfigMap")
			}
		})
	}
}
