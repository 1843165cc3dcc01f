package memberstatus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// healthyInput is the input of a healthy member.
func healthyInput() memberstatus.Input {
	p := newPlan(planVersion(1, 4), concurrencyPolicy(3))
	report := acknowledgingReport(p)
	report.HeartbeatSeconds, report.AgentVersion = 20, "v1.2.3"
	report.Budget, report.Slots, report.Images, report.References = 3, 2, 8, 11
	report.Phases = map[v1alpha1.Phase]int32{
		v1alpha1.PhaseQueued: 1, v1alpha1.PhaseSyncing: 2, v1alpha1.PhaseSucceeded: 1, v1alpha1.PhaseFailed: 1,
		v1alpha1.PhasePrunePending: 1, v1alpha1.PhaseTerminating: 1, v1alpha1.PhaseDeleting: 1,
	}
	report.Pages = []v1alpha1.PageRef{pageRef("p", 1), pageRef("q", 1)}
	received := now.Add(-5 * time.Second)
	return memberstatus.Input{
		Now:        now,
		HubVersion: "v1.2.3",
		Member:     &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "frankfurt", Generation: 7}},
		Connection: memberstatus.Connection{Known: true, Reachable: true},
		Report:     report, ReportClusterUID: uid, ReceivedAt: &received,
		Totals: &inventory.Totals{Reported: true, Counts: readapi.Counts{Images: 8, Unreferenced: 4, Bytes: 80},
			Failing: []v1alpha1.ImageSummary{{Namespace: "images", Name: "f"}}},
		Plan: p, DesiredPolicy: concurrencyPolicy(3), PolicySource: "fleet default",
	}
}

func healthyInputWith(change func(*memberstatus.Input)) memberstatus.Input {
	v := healthyInput()
	change(&v)
	return v
}

// withStoredStatus returns the input after its status is written.
func withStoredStatus(v memberstatus.Input) memberstatus.Input {
	v.Member = v.Member.DeepCopy()
	v.Member.Status, _ = memberstatus.Compute(v)
	return v
}

var conditionTypes = []string{
	v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled, v1alpha1.ConditionReachable, v1alpha1.ConditionMailboxSynced, v1alpha1.ConditionAgentHealthy, v1alpha1.ConditionIdentityConfirmed,
	v1alpha1.ConditionPolicyAcknowledged, v1alpha1.ConditionWithinBudget, v1alpha1.ConditionReportComplete, v1alpha1.ConditionVersionSupported, v1alpha1.ConditionServerVerified,
}

func TestStatusOfHealthyMember(t *testing.T) {
	got, after := memberstatus.Compute(healthyInput())
	for _, c := range got.Conditions {
		isSummary := c.Type == v1alpha1.ConditionReconciling || c.Type == v1alpha1.ConditionStalled
		assert.Equal(t, !isSummary, c.Status == metav1.ConditionTrue, c.Type)
		assert.Equal(t, int64(7), c.ObservedGeneration)
		assert.Equal(t, *timeAt(0), c.LastTransitionTime)
	}
	assert.Equal(t, 55*time.Second+time.Millisecond, after, "until three heartbeats are missing")
	got.Conditions = nil
	budget, slots, references := int32(3), int32(2), int32(11)
	v := newPlan(planVersion(1, 4), concurrencyPolicy(3)).PlanVersion
	assert.Equal(t, v1alpha1.MemberClusterStatus{
		ObservedGeneration: 7, Namespace: "ot-member-frankfurt", ClusterUID: uid, AgentVersion: "v1.2.3",
		Policy: &v1alpha1.MemberPolicy{Data: concurrencyPolicy(3), Source: "fleet default"}, Plan: &v, AcknowledgedPlan: &v,
		Budget: &budget, SlotsUsed: &slots, References: &references,
		Images:     &v1alpha1.MemberImages{Total: 8, Queued: 1, Syncing: 2, Ready: 1, Failed: 1, Leaving: 3, Unreferenced: 4, Bytes: 80},
		Failing:    []v1alpha1.ImageSummary{{Namespace: "images", Name: "f"}},
		LastReport: timeAt(-5),
		Uptime:     &v1alpha1.MemberUptime{Online: []v1alpha1.MemberStretch{{From: *timeAt(0)}}, Open: []v1alpha1.MemberStretch{{From: *timeAt(0)}}},
	}, got)
}

func TestStatusConditions(t *testing.T) {
	const (
		yes  = metav1.ConditionTrue
		no   = metav1.ConditionFalse
		open = metav1.ConditionUnknown
	)
	type want struct {
		condition string
		status    metav1.ConditionStatus
		reason    string
		message   string // a part of it
	}
	accepted := func(reason, message string) []metav1.Condition {
		return []metav1.Condition{{Type: v1alpha1.ConditionPlanAccepted, Status: metav1.ConditionFalse, Reason: reason, Message: message}}
	}
	noReport := func(v *memberstatus.Input) {
		v.Report, v.ReportClusterUID, v.ReceivedAt, v.Totals, v.Plan = nil, "", nil, nil, nil
	}
	ago := func(d time.Duration) *time.Time { t := now.Add(-d); return &t }

	for name, tt := range map[string]struct {
		change    func(*memberstatus.Input)
		want      []want
		wantReady metav1.ConditionStatus
		wantWhy   string // reason of Ready
	}{
		"the mailbox is not synced": {
			change:    func(v *memberstatus.Input) { v.SyncError = "creating ClusterPlan in the member: no" },
			want:      []want{{v1alpha1.ConditionMailboxSynced, no, v1alpha1.ReasonSyncFailed, "creating ClusterPlan in the member: no"}},
			wantReady: no, wantWhy: v1alpha1.ReasonSyncFailed,
		},
		"never connected": {
			change: func(v *memberstatus.Input) { noReport(v); v.Connection = memberstatus.Connection{} },
			want: []want{
				{v1alpha1.ConditionReachable, open, v1alpha1.ReasonNeverConnected, "not connected"},
				{v1alpha1.ConditionAgentHealthy, open, v1alpha1.ReasonNeverReported, "check that ot-agent runs"},
				{v1alpha1.ConditionIdentityConfirmed, open, v1alpha1.ReasonNeverReported, ""},
				{v1alpha1.ConditionPolicyAcknowledged, open, v1alpha1.ReasonNeverReported, "waits for the member's report"},
				{v1alpha1.ConditionWithinBudget, open, v1alpha1.ReasonNeverReported, ""},
				{v1alpha1.ConditionReportComplete, open, v1alpha1.ReasonNeverReported, ""},
			},
			wantReady: open, wantWhy: v1alpha1.ReasonNeverReported,
		},
		"refused by the member": {
			change: func(v *memberstatus.Input) {
				noReport(v)
				v.Connection = memberstatus.Connection{Known: true, Reason: v1alpha1.ReasonUnauthorized, Message: "renew the token"}
			},
			want:      []want{{v1alpha1.ConditionReachable, no, v1alpha1.ReasonUnauthorized, "renew the token"}},
			wantReady: no, wantWhy: v1alpha1.ReasonUnauthorized,
		},
		"reachable without its Secret": {
			change: func(v *memberstatus.Input) {
				v.Connection = memberstatus.Connection{Known: true, Reachable: true, Message: "connected; Secret x is gone"}
			},
			want:      []want{{v1alpha1.ConditionReachable, yes, v1alpha1.ReasonConnected, "the hub is connected to the member's API server; Secret x is gone"}},
			wantReady: yes, wantWhy: "Ready",
		},
		"not reachable": {
			change:    func(v *memberstatus.Input) { v.Connection = memberstatus.Connection{Known: true} },
			want:      []want{{v1alpha1.ConditionReachable, no, v1alpha1.ReasonUnreachable, "does not answer"}, {v1alpha1.ConditionAgentHealthy, yes, v1alpha1.ReasonReporting, ""}},
			wantReady: no, wantWhy: v1alpha1.ReasonUnreachable,
		},
		"not reachable for long": {
			change: func(v *memberstatus.Input) {
				v.Connection = memberstatus.Connection{Known: true}
				v.ReceivedAt = ago(time.Hour)
			},
			want:      []want{{v1alpha1.ConditionAgentHealthy, no, v1alpha1.ReasonSilent, "since 2026-03-01T11:00:00Z: the hub does not reach"}},
			wantReady: no, wantWhy: v1alpha1.ReasonUnreachable,
		},
		"silent": {
			change:    func(v *memberstatus.Input) { v.ReceivedAt = ago(61 * time.Second) },
			want:      []want{{v1alpha1.ConditionAgentHealthy, no, v1alpha1.ReasonSilent, "check that ot-agent runs in it"}},
			wantReady: no, wantWhy: v1alpha1.ReasonSilent,
		},
		"not silent before 30 s": {
			change:    func(v *memberstatus.Input) { v.Report.HeartbeatSeconds, v.ReceivedAt = 1, ago(29*time.Second) },
			want:      []want{{v1alpha1.ConditionAgentHealthy, yes, v1alpha1.ReasonReporting, ""}},
			wantReady: yes, wantWhy: "Ready",
		},
		"nor heard after 10 min, whatever it asks for": {
			change: func(v *memberstatus.Input) {
				v.Report.HeartbeatSeconds, v.ReceivedAt = 1<<30, ago(10*time.Minute+1)
			},
			want:      []want{{v1alpha1.ConditionAgentHealthy, no, v1alpha1.ReasonSilent, ""}},
			wantReady: no, wantWhy: v1alpha1.ReasonSilent,
		},
		"restored and silent": {
			change:    func(v *memberstatus.Input) { v.ReportOlder, v.ReceivedAt = true, ago(time.Hour) },
			want:      []want{{v1alpha1.ConditionAgentHealthy, no, v1alpha1.ReasonSilent, "restored from a backup"}},
			wantReady: no, wantWhy: v1alpha1.ReasonSilent,
		},
		"after a start the status counts, which lags behind": {
			change:    func(v *memberstatus.Input) { v.ReceivedAt = nil; v.Member.Status.LastReport = timeAt(-119) },
			want:      []want{{v1alpha1.ConditionAgentHealthy, yes, v1alpha1.ReasonReporting, ""}},
			wantReady: yes, wantWhy: "Ready",
		},
		"but not without end": {
			change:    func(v *memberstatus.Input) { v.ReceivedAt = nil; v.Member.Status.LastReport = timeAt(-121) },
			want:      []want{{v1alpha1.ConditionAgentHealthy, no, v1alpha1.ReasonSilent, "11:57:59"}},
			wantReady: no, wantWhy: v1alpha1.ReasonSilent,
		},
		"a hub that was down for long waits for the first report": {
			change: func(v *memberstatus.Input) {
				*v = withStoredStatus(*v)
				v.ReceivedAt, v.Member.Status.LastReport, v.WatchedSince = nil, timeAt(-3600), timeAt(-59).Time
			},
			want:      []want{{v1alpha1.ConditionAgentHealthy, yes, v1alpha1.ReasonReporting, ""}},
			wantReady: yes, wantWhy: "Ready",
		},
		"but not without end, either": {
			change: func(v *memberstatus.Input) {
				*v = withStoredStatus(*v)
				v.ReceivedAt, v.Member.Status.LastReport, v.WatchedSince = nil, timeAt(-3600), timeAt(-61).Time
			},
			want:      []want{{v1alpha1.ConditionAgentHealthy, no, v1alpha1.ReasonSilent, "11:00:00"}},
			wantReady: no, wantWhy: v1alpha1.ReasonSilent,
		},
		"what was silent before is, when a hub starts": {
			change: func(v *memberstatus.Input) {
				v.ReceivedAt, v.Member.Status.LastReport, v.WatchedSince = nil, timeAt(-3600), timeAt(-1).Time
			},
			want:      []want{{v1alpha1.ConditionAgentHealthy, no, v1alpha1.ReasonSilent, "11:00:00"}},
			wantReady: no, wantWhy: v1alpha1.ReasonSilent,
		},
		"a report of unknown age": {
			change:    func(v *memberstatus.Input) { v.ReceivedAt = nil },
			want:      []want{{v1alpha1.ConditionAgentHealthy, open, v1alpha1.ReasonUnknown, "since the hub started"}},
			wantReady: open, wantWhy: v1alpha1.ReasonUnknown,
		},

		"another cluster": {
			change: func(v *memberstatus.Input) { v.OtherClusterUID = "2222" },
			want: []want{{v1alpha1.ConditionIdentityConfirmed, no, v1alpha1.ReasonAnotherCluster,
				"kubectl annotate --overwrite membercluster frankfurt pelotech.ot/accept-cluster=2222"}},
			wantReady: no, wantWhy: v1alpha1.ReasonAnotherCluster,
		},
		"another cluster that was accepted and has not been copied yet": {
			change: func(v *memberstatus.Input) {
				v.OtherClusterUID = "2222"
				v.Member.Annotations = map[string]string{v1alpha1.AnnotationAcceptCluster: "2222"}
				v.Member.Status.ClusterUID = uid
			},
			want: []want{
				{v1alpha1.ConditionIdentityConfirmed, open, v1alpha1.ReasonNeverReported, "cluster 2222 has not reported"},
				{v1alpha1.ConditionAgentHealthy, open, v1alpha1.ReasonNeverReported, ""},
			},
			wantReady: open, wantWhy: v1alpha1.ReasonNeverReported,
		},
		"a cluster that another member has": {
			change: func(v *memberstatus.Input) { v.Holder = "berlin" },
			want: []want{
				{v1alpha1.ConditionIdentityConfirmed, no, v1alpha1.ReasonDuplicateCluster, "already belongs to MemberCluster berlin"},
				{v1alpha1.ConditionAgentHealthy, open, v1alpha1.ReasonDuplicateCluster, "berlin"},
				{v1alpha1.ConditionPolicyAcknowledged, open, v1alpha1.ReasonDuplicateCluster, "berlin"},
				{v1alpha1.ConditionWithinBudget, open, v1alpha1.ReasonDuplicateCluster, "berlin"},
				{v1alpha1.ConditionReportComplete, open, v1alpha1.ReasonDuplicateCluster, "berlin"},
			},
			wantReady: no, wantWhy: v1alpha1.ReasonDuplicateCluster,
		},

		"a kubeconfig that is not verified is allowed": {
			change:    func(v *memberstatus.Input) { v.Member.Spec.InsecureSkipTLSVerify = true },
			want:      []want{{v1alpha1.ConditionServerVerified, no, v1alpha1.ReasonVerificationSkipped, "unset spec.insecureSkipTLSVerify"}},
			wantReady: yes, wantWhy: "Ready",
		},
		"it is not allowed": {
			change:    func(*memberstatus.Input) {},
			want:      []want{{v1alpha1.ConditionServerVerified, yes, v1alpha1.ReasonCertificateVerified, "verifies"}},
			wantReady: yes, wantWhy: "Ready",
		},
		"no policy": {
			change:    func(v *memberstatus.Input) { v.Plan, v.DesiredPolicy = nil, nil },
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, no, v1alpha1.ReasonNoPolicy, "the hub has not read its policy ConfigMap yet"}},
			wantReady: no, wantWhy: v1alpha1.ReasonNoPolicy,
		},
		"a plan without a policy": {
			change:    func(v *memberstatus.Input) { v.Plan, v.DesiredPolicy = newPlan(planVersion(1, 4), nil), nil },
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, no, v1alpha1.ReasonNoPolicy, ""}},
			wantReady: no, wantWhy: v1alpha1.ReasonNoPolicy,
		},
		"the last policy stays while there is no valid one": {
			change:    func(v *memberstatus.Input) { v.DesiredPolicy = nil },
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, yes, v1alpha1.ReasonAcknowledged, "plan 4 (fleet default)"}},
			wantReady: yes, wantWhy: "Ready",
		},
		"contradicting overrides": {
			change: func(v *memberstatus.Input) {
				v.DesiredPolicy, v.PolicyErrors = nil, []policy.KeyError{{Key: "maxRetryBackoff", Message: "too short"}}
			},
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, no, v1alpha1.ReasonPolicyRefused, "maxRetryBackoff: too short. The previous plan stays"}},
			wantReady: no, wantWhy: v1alpha1.ReasonPolicyRefused,
		},
		"no plan yet": {
			change:    func(v *memberstatus.Input) { v.Plan = nil },
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, open, v1alpha1.ReasonUnknown, "about to be written"}},
			wantReady: open, wantWhy: v1alpha1.ReasonUnknown,
		},
		"the plan must wait": {
			change:    func(v *memberstatus.Input) { v.DesiredPolicy = concurrencyPolicy(5) },
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, no, v1alpha1.ReasonNotAcknowledged, "not planned yet"}},
			wantReady: no, wantWhy: v1alpha1.ReasonNotAcknowledged,
		},
		"no plan acknowledged": {
			change:    func(v *memberstatus.Input) { v.Report.Plan = nil },
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, no, v1alpha1.ReasonNotAcknowledged, "its first plan"}},
			wantReady: no, wantWhy: v1alpha1.ReasonNotAcknowledged,
		},
		"an older one acknowledged": {
			change: func(v *memberstatus.Input) {
				v.Report.Plan = &v1alpha1.PlanVersion{Epoch: 1, Sequence: 3}
				v.Connection = memberstatus.Connection{Known: true}
			},
			want: []want{{v1alpha1.ConditionPolicyAcknowledged, no, v1alpha1.ReasonNotAcknowledged,
				"waiting for the member to acknowledge plan 4 (it runs plan 3) (see Reachable)"}},
			wantReady: no, wantWhy: v1alpha1.ReasonUnreachable,
		},
		"one of the same version and another content": {
			change:    func(v *memberstatus.Input) { v.Report.Plan.Hash = "another" },
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, no, v1alpha1.ReasonNotAcknowledged, ""}},
			wantReady: no, wantWhy: v1alpha1.ReasonNotAcknowledged,
		},
		"the agent says why not": {
			change: func(v *memberstatus.Input) {
				v.Report.Plan = nil
				v.Report.Conditions = accepted(v1alpha1.ReasonPlanForAnotherCluster, "it is for another cluster")
			},
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, no, v1alpha1.ReasonNotAcknowledged, "it is for another cluster"}},
			wantReady: no, wantWhy: v1alpha1.ReasonNotAcknowledged,
		},
		"the agent refuses the policy": {
			change: func(v *memberstatus.Input) {
				v.Report.Conditions = accepted(v1alpha1.ReasonPlanPolicyInvalid, "concurrency: too large")
			},
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, no, v1alpha1.ReasonPolicyRefused, "concurrency: too large"}},
			wantReady: no, wantWhy: v1alpha1.ReasonPolicyRefused,
		},
		"held": {
			change: func(v *memberstatus.Input) {
				v.Plan = withHeldPolicy(v.Plan, concurrencyPolicy(9))
				v.DesiredPolicy, v.PolicySource = concurrencyPolicy(9), "override a=b"
			},
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, no, v1alpha1.ReasonPolicyHeld, "the policy of the hub's ConfigMap (override a=b) is held back"}},
			wantReady: no, wantWhy: v1alpha1.ReasonPolicyHeld,
		},
		"another hub": {
			change:    func(v *memberstatus.Input) { v.Contested, v.Plan = true, withHeldPolicy(v.Plan, concurrencyPolicy(9)) },
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, no, v1alpha1.ReasonAnotherHub, "delete this MemberCluster on the hub that is not to have it: kubectl delete membercluster "}},
			wantReady: no, wantWhy: v1alpha1.ReasonAnotherHub,
		},
		"held within the fleet's budget": {
			change: func(v *memberstatus.Input) {
				v.Plan = withHeldPolicy(v.Plan, concurrencyPolicy(9))
				v.Plan.Policy = map[string]string{"concurrency": "3", "safeConcurrency": "1"}
				v.DesiredPolicy = concurrencyPolicy(9)
			},
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, no, v1alpha1.ReasonPolicyHeld, "as far as the fleet's budget permits"}},
			wantReady: no, wantWhy: v1alpha1.ReasonPolicyHeld,
		},
		"the next plan waits for the budget": {
			change: func(v *memberstatus.Input) {
				v.PlanRefused, v.DesiredPolicy = true, concurrencyPolicy(9)
			},
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, no, v1alpha1.ReasonNotAcknowledged, "is not planned yet: writing it would exceed the member's share of the fleet's budget"}},
			wantReady: no, wantWhy: v1alpha1.ReasonNotAcknowledged,
		},
		"held, and the next plan waits for the budget": {
			change: func(v *memberstatus.Input) {
				v.Plan = withHeldPolicy(v.Plan, concurrencyPolicy(9))
				v.PlanRefused, v.DesiredPolicy = true, concurrencyPolicy(9)
			},
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, no, v1alpha1.ReasonPolicyHeld, "until that changes; the next plan waits: writing it would exceed the member's share"}},
			wantReady: no, wantWhy: v1alpha1.ReasonPolicyHeld,
		},
		"the first plan waits for the budget": {
			change:    func(v *memberstatus.Input) { v.PlanRefused, v.Plan = true, nil },
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, metav1.ConditionUnknown, v1alpha1.ReasonUnknown, "the first plan waits: writing it would exceed the member's share"}},
			wantReady: metav1.ConditionUnknown, wantWhy: v1alpha1.ReasonUnknown,
		},
		"a plan in the member that no hub writes": {
			change: func(v *memberstatus.Input) {
				v.Report.Plan.Sequence--
				v.NewerMemberPlan = v1alpha1.PlanVersion{Epoch: 1 << 52, Sequence: 1}
			},
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, no, v1alpha1.ReasonNotAcknowledged, "which no hub writes; delete ClusterPlan default there"}},
			wantReady: no, wantWhy: v1alpha1.ReasonNotAcknowledged,
		},
		"the API server refuses the next plan": {
			change:    func(v *memberstatus.Input) { v.InvalidPlan = "spec.policy: Too many: 65" },
			want:      []want{{v1alpha1.ConditionPolicyAcknowledged, no, v1alpha1.ReasonNotAcknowledged, "the next plan cannot be written, so nothing new reaches the member: spec.policy: Too many: 65"}},
			wantReady: no, wantWhy: v1alpha1.ReasonNotAcknowledged,
		},

		"over its budget": {
			change:    func(v *memberstatus.Input) { v.Report.Slots = 5 },
			want:      []want{{v1alpha1.ConditionWithinBudget, no, v1alpha1.ReasonOverBudget, "5 slots are taken, and the budget is 3"}},
			wantReady: yes, wantWhy: "Ready",
		},
		"a member that lies": {
			change:    func(v *memberstatus.Input) { v.Report.Budget = 100 },
			want:      []want{{v1alpha1.ConditionWithinBudget, no, v1alpha1.ReasonOverBudget, "the ledger's budget is 100, and the acknowledged plan allows 3"}},
			wantReady: yes, wantWhy: "Ready",
		},
		"a budget of an older plan": {
			change:    func(v *memberstatus.Input) { v.Report.Budget, v.Report.Plan.Sequence = 100, 3 },
			want:      []want{{v1alpha1.ConditionWithinBudget, yes, v1alpha1.ReasonWithinBudget, ""}},
			wantReady: no, wantWhy: v1alpha1.ReasonNotAcknowledged,
		},
		"no ledger": {
			change:    func(v *memberstatus.Input) { v.Report.NoLedger = true },
			want:      []want{{v1alpha1.ConditionWithinBudget, open, v1alpha1.ReasonUnknown, "no SyncLedger yet"}},
			wantReady: yes, wantWhy: "Ready",
		},

		"pages missing": {
			change:    func(v *memberstatus.Input) { v.Totals.MissingPages = []string{"a", "b", "c", "d"} },
			want:      []want{{v1alpha1.ConditionReportComplete, no, v1alpha1.ReasonPagesMissing, "a, b, c and 1 more"}},
			wantReady: no, wantWhy: v1alpha1.ReasonPagesMissing,
		},
		"pages on their way": {
			change: func(v *memberstatus.Input) {
				v.Totals.MissingPages, v.IncompleteSince = []string{"a"}, ago(time.Second)
			},
			want:      []want{{v1alpha1.ConditionReportComplete, open, v1alpha1.ReasonPagesMissing, "being copied"}},
			wantReady: open, wantWhy: v1alpha1.ReasonPagesMissing,
		},
		"pages not read": {
			change:    func(v *memberstatus.Input) { v.Totals = nil },
			want:      []want{{v1alpha1.ConditionReportComplete, open, v1alpha1.ReasonUnknown, "not been read yet"}},
			wantReady: open, wantWhy: v1alpha1.ReasonUnknown,
		},
		"pages beyond the limits": {
			change:    func(v *memberstatus.Input) { v.Totals.MissingPages, v.Excess.IgnoredPages = []string{"a"}, 1 },
			want:      []want{{v1alpha1.ConditionReportComplete, no, v1alpha1.ReasonReportOversized, "upgrade the agent if it is 0.2 or older"}},
			wantReady: no, wantWhy: v1alpha1.ReasonReportOversized,
		},
		"a root that is too large": {
			change:    func(v *memberstatus.Input) { v.Excess.RootTooLarge = true },
			want:      []want{{v1alpha1.ConditionReportComplete, no, v1alpha1.ReasonReportOversized, "upgrade the agent if it is 0.2 or older"}},
			wantReady: no, wantWhy: v1alpha1.ReasonReportOversized,
		},
		"a page that cannot be decoded": {
			change:    func(v *memberstatus.Input) { v.Totals.MissingPages, v.Excess.Undecodable = []string{"a"}, true },
			want:      []want{{v1alpha1.ConditionReportComplete, no, v1alpha1.ReasonReportUndecodable, "cannot decode"}},
			wantReady: no, wantWhy: v1alpha1.ReasonReportUndecodable,
		},
		"a flood of pages": {
			change:    func(v *memberstatus.Input) { v.Excess.FloodedAt = ago(time.Minute) },
			want:      []want{{v1alpha1.ConditionReportComplete, no, v1alpha1.ReasonUnlistedReports, "revoke"}},
			wantReady: no, wantWhy: v1alpha1.ReasonUnlistedReports,
		},
		"too many images": {
			change:    func(v *memberstatus.Input) { v.Totals.OmittedImages = 3 },
			want:      []want{{v1alpha1.ConditionReportComplete, no, v1alpha1.ReasonPagesOmitted, "3 of 8 images"}},
			wantReady: no, wantWhy: v1alpha1.ReasonPagesOmitted,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := healthyInputWith(tt.change)
			got, _ := memberstatus.Compute(v)
			for _, w := range append(tt.want, want{v1alpha1.ConditionReady, tt.wantReady, tt.wantWhy, ""}) {
				c := meta.FindStatusCondition(got.Conditions, w.condition)
				require.NotNil(t, c)
				assert.Equal(t, w.status, c.Status, "%s: %s", c.Type, c.Message)
				assert.Equal(t, w.reason, c.Reason, c.Type)
				assert.Contains(t, c.Message, w.message)
			}
			var types []string
			for _, c := range got.Conditions {
				types = append(types, c.Type)
				assert.NotEmpty(t, c.Message, c.Type)
				assert.NotEmpty(t, c.Reason, c.Type)
			}
			assert.ElementsMatch(t, conditionTypes, types)

			// Time alone changes nothing, apart from the rechecks that were requested.
			v = withStoredStatus(v)
			v.Now = v.Now.Add(time.Second)
			again, _ := memberstatus.Compute(v)
			assert.True(t, equality.Semantic.DeepEqual(v.Member.Status, again), "%v\n%v", v.Member.Status, again)
		})
	}
}

func TestUnknownIsNotZero(t *testing.T) {
	got, after := memberstatus.Compute(healthyInputWith(func(v *memberstatus.Input) { v.Report, v.ReportClusterUID, v.ReceivedAt = nil, "", nil }))
	assert.Nil(t, got.Budget)
	assert.Nil(t, got.SlotsUsed)
	assert.Nil(t, got.Images)
	assert.Nil(t, got.References)
	assert.Nil(t, got.LastReport)
	assert.Zero(t, after)

	got, _ = memberstatus.Compute(healthyInputWith(func(v *memberstatus.Input) { v.Report.NoLedger = true }))
	assert.Nil(t, got.Budget)
	assert.Nil(t, got.SlotsUsed)
	assert.NotNil(t, got.Images)

	got, _ = memberstatus.Compute(healthyInputWith(func(v *memberstatus.Input) { v.Member.Status.ClusterUID = "the one before" }))
	assert.Nil(t, got.Budget, "the report is of another cluster")
	assert.Equal(t, types.UID("the one before"), got.ClusterUID)
}
