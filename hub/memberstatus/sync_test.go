package memberstatus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// The status shows which replica syncs a member, and what happens if none does.
func TestStatusShowsStalledSync(t *testing.T) {
	inPullMode := func(change func(*memberstatus.Input)) memberstatus.Input {
		return healthyInputWith(func(v *memberstatus.Input) {
			v.Connection = memberstatus.Connection{PullMode: true, Known: true, Reachable: true}
			change(v)
		})
	}
	tests := map[string]struct {
		view          memberstatus.Input
		wantReachable metav1.ConditionStatus
		wantReason    string
		wantMessage   string
		wantHealthy   metav1.ConditionStatus
	}{
		"the agent syncs": {
			view: inPullMode(func(*memberstatus.Input) {}), wantReachable: metav1.ConditionTrue, wantReason: v1alpha1.ReasonConnected,
			wantMessage: "the agent syncs", wantHealthy: metav1.ConditionTrue,
		},
		"the agent stopped syncing": {
			view: inPullMode(silent), wantReachable: metav1.ConditionFalse, wantReason: v1alpha1.ReasonNotDialledIn,
			wantMessage: "since " + now.Add(-time.Hour).UTC().Format(time.RFC3339), wantHealthy: metav1.ConditionFalse,
		},
		"the agent stopped syncing, and the spec changed": {
			view: inPullMode(func(v *memberstatus.Input) {
				silent(v)
				v.Connection = memberstatus.Connection{PullMode: true, SpecChanged: true}
			}),
			wantReachable: metav1.ConditionFalse, wantReason: v1alpha1.ReasonNotDialledIn,
			wantMessage: "since " + now.Add(-time.Hour).UTC().Format(time.RFC3339), wantHealthy: metav1.ConditionFalse,
		},
		"the spec changed, and the agent synced before": {
			view:          inPullMode(func(v *memberstatus.Input) { v.Connection = memberstatus.Connection{PullMode: true, SpecChanged: true} }),
			wantReachable: metav1.ConditionUnknown, wantReason: v1alpha1.ReasonConnectionChanged, wantMessage: "has not synced by the new one yet", wantHealthy: metav1.ConditionTrue,
		},
		"the agent never synced": {
			view:          inPullMode(func(v *memberstatus.Input) { v.Report, v.Connection.Known = nil, false }),
			wantReachable: metav1.ConditionUnknown, wantReason: v1alpha1.ReasonNeverConnected, wantMessage: "has not connected yet", wantHealthy: metav1.ConditionUnknown,
		},
		"no replica syncs its report": {
			view:          healthyInputWith(func(v *memberstatus.Input) { silent(v); v.SyncStalled = "replica one does not" }),
			wantReachable: metav1.ConditionFalse, wantReason: v1alpha1.ReasonReportNotCarried, wantMessage: "replica one does not", wantHealthy: metav1.ConditionFalse,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, _ := memberstatus.Compute(test.view)
			reachable := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionReachable)
			apitest.AssertCondition(t, reachable, test.wantReachable, test.wantReason, test.wantMessage)
			assert.Equal(t, test.wantHealthy, meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionAgentHealthy).Status)
		})
	}
}

// silent has the last report be an hour old.
func silent(v *memberstatus.Input) {
	long := now.Add(-time.Hour)
	v.ReceivedAt = &long
}

// A person must not be sent to an agent whose report is not copied.
func TestSilenceOfARefusedReport(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*memberstatus.Input)
		want   string
	}{
		"its report is refused":    {func(v *memberstatus.Input) { v.SyncError, v.ReportRefused = "the hub refuses it", true }, "it is not copied (see MailboxSynced)"},
		"its plan cannot be given": {func(v *memberstatus.Input) { v.SyncError = "creating ClusterPlan: forbidden" }, "check that ot-agent runs in it"},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := memberstatus.Compute(healthyInputWith(func(v *memberstatus.Input) { silent(v); tt.change(v) }))
			assert.Contains(t, meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionAgentHealthy).Message, tt.want)
		})
	}
}

// AgentHealthy never contradicts Reachable.
func TestSilenceIsExplainedByReachable(t *testing.T) {
	for name, tt := range map[string]struct {
		connection    memberstatus.Connection
		wantReachable metav1.ConditionStatus
		want          string
	}{
		"reachable":        {memberstatus.Connection{Known: true, Reachable: true}, metav1.ConditionTrue, "although the member is reachable"},
		"unreachable":      {memberstatus.Connection{Known: true}, metav1.ConditionFalse, "the hub does not reach the member (see Reachable)"},
		"the spec changed": {memberstatus.Connection{SpecChanged: true}, metav1.ConditionUnknown, "the hub does not know whether it reaches the member (see Reachable)"},
		"never tried":      {memberstatus.Connection{}, metav1.ConditionUnknown, "the hub does not know whether it reaches the member (see Reachable)"},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := memberstatus.Compute(healthyInputWith(func(v *memberstatus.Input) { silent(v); v.Connection = tt.connection }))
			assert.Equal(t, tt.wantReachable, meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionReachable).Status)
			assert.Contains(t, meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionAgentHealthy).Message, tt.want)
		})
	}
}

// The time of the last report alone is not written with each report.
func TestUnchangedStatusIsNotWritten(t *testing.T) {
	v := healthyInput()
	v.Shard = "ot-hub-0"
	v = withStoredStatus(v)
	before := v.Member.Status
	assert.Equal(t, "ot-hub-0", before.Shard)
	later := v.ReceivedAt.Add(20 * time.Second)
	v.Now, v.ReceivedAt = later, &later
	after, _ := memberstatus.Compute(v)
	assert.Equal(t, before.LastReport, after.LastReport)
}
