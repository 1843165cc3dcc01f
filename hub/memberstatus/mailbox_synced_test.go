package memberstatus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

func TestReportsOfAnotherTime(t *testing.T) {
	observed := func(after time.Duration) func(*memberstatus.Input) {
		return func(v *memberstatus.Input) {
			root := *v.Report
			root.ObservedAt = metav1.NewTime(v.ReceivedAt.Add(after))
			v.Report = &root
		}
	}
	for name, tt := range map[string]struct {
		change              func(*memberstatus.Input)
		condition, wantText string
		wantStatus          metav1.ConditionStatus
	}{
		"ahead":       {observed(time.Hour), v1alpha1.ConditionAgentHealthy, "more than 5m0s ahead of the hub's", metav1.ConditionTrue},
		"behind":      {observed(-time.Hour), v1alpha1.ConditionAgentHealthy, "more than 5m0s behind the hub's", metav1.ConditionTrue},
		"a bit ahead": {observed(time.Minute), v1alpha1.ConditionAgentHealthy, "the agent reports at least every", metav1.ConditionTrue},
		"older": {
			func(v *memberstatus.Input) { v.ReportOlder = true }, v1alpha1.ConditionMailboxSynced,
			"delete ClusterReport default in namespace ot-member-frankfurt of the hub", metav1.ConditionFalse,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := memberstatus.Compute(healthyInputWith(tt.change))
			c := meta.FindStatusCondition(got.Conditions, tt.condition)
			assert.Equal(t, tt.wantStatus, c.Status)
			assert.Contains(t, c.Message, tt.wantText)
			if name == "a bit ahead" {
				assert.NotContains(t, c.Message, "clock")
			}
		})
	}
}
