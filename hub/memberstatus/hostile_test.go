package memberstatus_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/schemacheck"
	"github.com/pelotech/ot-fleet/api/apitest/statuscheck"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// Reports are bounded by their schema already; the status of the hub does not rely on it.
func TestStatusCanBeStoredWhateverMembersReport(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := func(what string) string { return apitest.HostileText().Draw(t, what) }
		name := func(what string, limit int) string {
			return v1alpha1.Truncate(strings.ToValidUTF8(text(what), ""), limit)
		}
		index := inventory.NewIndex()
		index.AddMember("a")
		index.SetRoot("a", &v1alpha1.ReportRoot{Pages: []v1alpha1.PageRef{pageRef("page", 1)}})
		index.SetPage("a", "page", 1, []v1alpha1.ReportedImage{{
			Namespace: name("namespace", 63), Name: name("name", 253), UID: "uid", Phase: v1alpha1.PhaseFailed,
			Reason: v1alpha1.Reason(text("reason")), Message: text("message"), Source: text("source"),
		}})
		totals, _ := index.Totals("a")
		p := newPlan(planVersion(1, 2), concurrencyPolicy(2))
		report := acknowledgingReport(p)
		report.AgentVersion, report.PlanPolicySource, report.ObservedAt = text("version"), text("policy source"), *timeAt(0)
		report.PlanPolicy = map[string]string{"concurrency": text("policy")}
		report.Policy = map[string]string{text("key"): text("value")}
		report.Conditions = []metav1.Condition{{Type: "PolicyValid", Status: metav1.ConditionFalse, Reason: "Invalid", Message: text("condition")}}
		report.Phases = map[v1alpha1.Phase]int32{v1alpha1.PhaseFailed: rapid.Int32().Draw(t, "failed")}
		status, _ := memberstatus.Compute(memberstatus.Input{
			Now: now, Member: &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "a", Generation: 1}}, HubVersion: "1.0.0",
			Connection: memberstatus.Connection{
				PullMode: rapid.Bool().Draw(t, "pull"), Known: rapid.Bool().Draw(t, "known"), Reachable: rapid.Bool().Draw(t, "reachable"), Message: text("connection"),
			},
			SyncStalled: rapid.SampledFrom([]string{"", text("stalled")}).Draw(t, "syncStalled"),
			Report:      report, ReportClusterUID: uid, ReceivedAt: &now, WatchedSince: now, Totals: &totals, Plan: p,
			UnsupportedFields: []string{text("field")}, DesiredPolicy: concurrencyPolicy(2), PolicySource: "fleet default",
			PolicyErrors: []policy.KeyError{{Key: text("bad key"), Message: text("error")}},
		})
		schemacheck.RequireStorable(t, "MemberCluster", &status)
		statuscheck.RequireOneTrue(t, status.Conditions)
		for _, c := range status.Conditions {
			require.NotContains(t, c.Message, apitest.Secret)
		}
		for _, failing := range status.Failing {
			require.NotContains(t, failing.Message, apitest.Secret)
		}
	})
}
