package reportlimits_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/reportlimits"
)

// A report's policy lands in the plan and in the status of the MemberCluster.
func TestPolicyIsBounded(t *testing.T) {
	large := map[string]string{"concurrency": "2", "safeConcurrency": "1", "windows": strings.Repeat("w", 16<<10), "aNewerKey": "x"}
	for i := range 30 {
		large[fmt.Sprint("key", i)] = strings.Repeat("x", 16<<10)
	}
	report := &v1alpha1.ClusterReport{Root: &v1alpha1.ReportRoot{Policy: large, PlanPolicy: large}}
	bounded := reportlimits.Bound(report)
	assert.Len(t, large, 34, "what is read is not changed")
	for _, policy := range []map[string]string{bounded.Root.Policy, bounded.Root.PlanPolicy} {
		bytes := 0
		for key, value := range policy {
			bytes += len(key) + len(value)
			assert.Equal(t, large[key], value, "no value is cut")
		}
		assert.LessOrEqual(t, bytes, reportlimits.MaxPolicyBytes)
		for _, key := range []string{"concurrency", "safeConcurrency", "windows", "aNewerKey"} {
			assert.Contains(t, policy, key)
		}
	}
}

// What honest agents report stays: the longest lists, and keys that this hub does not know.
func TestHonestPolicyStays(t *testing.T) {
	policy := map[string]string{
		"concurrency": "2", "windows": strings.Repeat("w", 16<<10), "preflightAllow": strings.Repeat("p", 16<<10),
		"allowedNamespaces": strings.Repeat("n", 16<<10), "fleetSources": strings.Repeat("s", 8<<10), "aNewerKey": strings.Repeat("x", 4<<10),
	}
	report := &v1alpha1.ClusterReport{Root: &v1alpha1.ReportRoot{Policy: policy, PlanPolicy: policy}}
	assert.Same(t, report, reportlimits.Bound(report))
}
