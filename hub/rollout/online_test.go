package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

func TestAvailability(t *testing.T) {
	condition := func(of string, status metav1.ConditionStatus, reason string, since time.Time) metav1.Condition {
		return metav1.Condition{Type: of, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(since)}
	}
	identity, healthy := v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionAgentHealthy
	for name, tt := range map[string]struct {
		conditions []metav1.Condition
		wantReason string
		wantSince  time.Time
	}{
		"new":                   {nil, "Unknown", time.Time{}},
		"one condition missing": {[]metav1.Condition{condition(identity, "True", "SameCluster", now)}, "Unknown", time.Time{}},
		"online":                {[]metav1.Condition{condition(identity, "True", "SameCluster", now), condition(healthy, "True", "Reporting", now.Add(time.Hour))}, "", now.Add(time.Hour)},
		"identity later":        {[]metav1.Condition{condition(healthy, "True", "Reporting", now), condition(identity, "True", "SameCluster", now.Add(time.Hour))}, "", now.Add(time.Hour)},
		"silent":                {[]metav1.Condition{condition(identity, "True", "SameCluster", now), condition(healthy, "False", "Silent", now)}, "Silent", time.Time{}},
		"unknown":               {[]metav1.Condition{condition(identity, "True", "SameCluster", now), condition(healthy, "Unknown", "NeverReported", now)}, "NeverReported", time.Time{}},
		"another cluster":       {[]metav1.Condition{condition(identity, "False", "AnotherCluster", now), condition(healthy, "True", "Reporting", now)}, "AnotherCluster", time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			reason, since := rollout.Availability(&v1alpha1.MemberCluster{Status: v1alpha1.MemberClusterStatus{Conditions: tt.conditions}})
			assert.Equal(t, tt.wantReason, reason)
			assert.Equal(t, tt.wantSince, since)
			reason, _ = rollout.Availability(&v1alpha1.MemberCluster{
				Spec: v1alpha1.MemberClusterSpec{Quarantine: &v1alpha1.MemberQuarantine{Reason: "it lies"}}, Status: v1alpha1.MemberClusterStatus{Conditions: tt.conditions}})
			assert.Equal(t, v1alpha1.ReasonQuarantined, reason, "in quarantine, at once")
		})
	}
}
