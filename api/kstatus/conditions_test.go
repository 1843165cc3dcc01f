package kstatus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest/statuscheck"
	"github.com/pelotech/ot-fleet/api/kstatus"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestSetConditions(t *testing.T) {
	for name, tt := range map[string]struct {
		ready   metav1.ConditionStatus
		stalled bool
		want    string
	}{
		"ready":                       {metav1.ConditionTrue, false, v1alpha1.ConditionReady},
		"in progress":                 {metav1.ConditionFalse, false, v1alpha1.ConditionReconciling},
		"unknown":                     {metav1.ConditionUnknown, false, v1alpha1.ConditionReconciling},
		"a person has to act":         {metav1.ConditionFalse, true, v1alpha1.ConditionStalled},
		"unknown, until a person act": {metav1.ConditionUnknown, true, v1alpha1.ConditionStalled},
		"ready, whatever the reason":  {metav1.ConditionTrue, true, v1alpha1.ConditionReady},
	} {
		t.Run(name, func(t *testing.T) {
			var conditions []metav1.Condition
			at := metav1.NewTime(time.Unix(1000, 0))
			kstatus.SetConditions(&conditions, metav1.Condition{Status: tt.ready, Reason: "Why", Message: "because", ObservedGeneration: 3, LastTransitionTime: at}, tt.stalled)
			require.Len(t, conditions, 3)
			for _, c := range conditions {
				assert.Equal(t, c.Type == tt.want, c.Status == metav1.ConditionTrue, c.Type)
				assert.Equal(t, metav1.Condition{Type: c.Type, Status: c.Status, Reason: "Why", Message: "because", ObservedGeneration: 3, LastTransitionTime: at}, c)
			}
			assert.Equal(t, tt.ready, meta.FindStatusCondition(conditions, v1alpha1.ConditionReady).Status)
		})
	}
}

// Whatever comes after whatever: exactly one is True, lastTransitionTime moves with the status
// alone, and other conditions stay.
func TestPropertyConditionsOverTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		other := metav1.Condition{Type: v1alpha1.ConditionFinished, Status: metav1.ConditionTrue, Reason: "Other"}
		conditions := []metav1.Condition{other}
		for second := range rapid.IntRange(1, 20).Draw(t, "writes") {
			before := append([]metav1.Condition(nil), conditions...)
			ready := metav1.Condition{
				Type:   rapid.SampledFrom([]string{"", v1alpha1.ConditionReady, v1alpha1.ConditionStalled, v1alpha1.ConditionFinished}).Draw(t, "type"),
				Status: rapid.SampledFrom([]metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown}).Draw(t, "ready"),
				Reason: rapid.SampledFrom([]string{"A", "B"}).Draw(t, "reason"), ObservedGeneration: int64(second),
				LastTransitionTime: metav1.NewTime(time.Unix(int64(second), 0)),
			}
			kstatus.SetConditions(&conditions, ready, rapid.Bool().Draw(t, "stalled"))
			statuscheck.RequireOneTrue(t, conditions)
			require.Equal(t, other, conditions[0])
			require.Equal(t, ready.Status, meta.FindStatusCondition(conditions, v1alpha1.ConditionReady).Status)
			for _, c := range conditions[1:] {
				require.Equal(t, ready.Reason, c.Reason)
				require.Equal(t, int64(second), c.ObservedGeneration)
				want := ready.LastTransitionTime
				if old := meta.FindStatusCondition(before, c.Type); old != nil && old.Status == c.Status {
					want = old.LastTransitionTime
				}
				require.Equal(t, want, c.LastTransitionTime, c.Type)
			}
		}
	})
}
