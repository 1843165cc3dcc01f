//go:build linux

package fleet_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// isConditionTrue reports whether a condition is True.
func isConditionTrue(m *v1alpha1.MemberCluster, condition string) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, condition)
}

// hasReason reports whether a condition has a reason.
func hasReason(m *v1alpha1.MemberCluster, condition, reason string) bool {
	c := meta.FindStatusCondition(m.Status.Conditions, condition)
	return c != nil && c.Reason == reason
}

// hasBudget matches a member that is Ready with a budget.
func hasBudget(budget int32) func(*v1alpha1.MemberCluster) bool {
	return func(m *v1alpha1.MemberCluster) bool {
		return isConditionTrue(m, v1alpha1.ConditionReady) && m.Status.Budget != nil && *m.Status.Budget == budget
	}
}

// readMetric returns a metric of the hub by its name and labels.
func (f *testFleet) readMetric(t *testing.T, name string) (value float64, found bool) {
	t.Helper()
	text, err := f.Hub.ReadMetrics(t.Context())
	require.NoError(t, err)
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			value, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			require.NoError(t, err, line)
			return value, true
		}
	}
	return 0, false
}

// awaitMetric waits until a metric has a value.
func (f *testFleet) awaitMetric(t *testing.T, name string, want float64) {
	t.Helper()
	var value float64
	var found bool
	require.True(t, testenv.AwaitCondition(t, func() bool {
		value, found = f.readMetric(t, name)
		return found && value == want
	}), "metric %s is %v (there: %t), want %v", name, value, found, want)
}
