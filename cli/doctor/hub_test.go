package doctor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
)

func healthyHubView() *Snapshot {
	return &Snapshot{View: ViewHub, Cluster: "frankfurt", Hub: &Hub{
		Version: "v0.3.0", AgentVersion: "v0.3.0",
		Conditions: []metav1.Condition{
			trueCondition(v1alpha1.ConditionAgentHealthy), trueCondition(v1alpha1.ConditionVersionSupported), trueCondition(v1alpha1.ConditionPolicyAcknowledged),
		},
		Reported: []metav1.Condition{
			trueCondition(v1alpha1.ConditionRightsComplete), trueCondition(v1alpha1.ConditionBudgetGuarded),
			trueCondition(v1alpha1.ConditionOneDownload), trueCondition(v1alpha1.ConditionPolicyAccepted),
		},
	}}
}

func reports(reason v1alpha1.Reason, message string) func(*Snapshot) {
	return func(s *Snapshot) {
		s.Hub.ReportedImage = []ImageProblem{{Namespace: "farm", Name: "ubuntu", Reason: reason, Message: message}}
	}
}

// reportsFalse replaces a condition of healthyHubView that the member has reported.
func reportsFalse(index int, kind, reason, message string) func(*Snapshot) {
	return func(s *Snapshot) { s.Hub.Reported[index] = falseCondition(kind, reason, message) }
}

func TestHubChecks(t *testing.T) {
	silent := func(s *Snapshot) {
		s.Hub.SilentSince = ptr.To(metav1.NewTime(testTime))
		s.Hub.Conditions[0] = falseCondition(v1alpha1.ConditionAgentHealthy, v1alpha1.ReasonSilent, "not heard for 2h")
	}
	// waiting: the newest plan is not acknowledged, since some time ago.
	waiting := func(since time.Duration, change func(*Snapshot)) func(*Snapshot) {
		return func(s *Snapshot) {
			s.ServerTime, s.Hub.HeartbeatSeconds = testTime, 60
			s.Hub.Conditions[2] = falseCondition(v1alpha1.ConditionPolicyAcknowledged, v1alpha1.ReasonNotAcknowledged, "waiting for plan 5")
			s.Hub.Conditions[2].LastTransitionTime = metav1.NewTime(testTime.Add(-since))
			change(s)
		}
	}
	for _, tt := range []testCase{
		{"k8s-version", "the hub does not know", unchanged, Skip, "needs --live or --member-context"},
		{"agent-running", "reports", unchanged, Pass, "all is well"},
		{"agent-running", "silent", silent, Fail, "not heard for 2h"},
		{"agent-version-skew", "supported", unchanged, Pass, "all is well"},
		{"agent-version-skew", "too old", func(s *Snapshot) {
			s.Hub.Conditions[1] = falseCondition(v1alpha1.ConditionVersionSupported, v1alpha1.ReasonVersionTooOld, "agent v0.1.0")
		}, Fail, "agent v0.1.0"},
		{"policy-accepted", "acknowledged", unchanged, Pass, "all is well"},
		{"policy-accepted", "a plan of just now", waiting(time.Second, unchanged), Skip, "in progress: waiting for plan 5"},
		{"policy-accepted", "at the end of what it may be silent", waiting(3*time.Minute, unchanged), Skip, "in progress"},
		{"policy-accepted", "a plan that waits for longer", waiting(3*time.Minute+time.Second, unchanged), Fail, "waiting for plan 5"},
		{"policy-accepted", "of a heartbeat that is not known", waiting(31*time.Second, func(s *Snapshot) { s.Hub.HeartbeatSeconds = 0 }), Fail, "waiting for plan 5"},
		{"policy-accepted", "by a clock that was ahead", waiting(-time.Hour, unchanged), Fail, "waiting for plan 5"},
		{"policy-accepted", "at an unknown time", waiting(time.Second, func(s *Snapshot) { s.ServerTime = time.Time{} }), Fail, "waiting for plan 5"},
		{"policy-accepted", "a plan of just now, and a silent member", waiting(time.Second, silent), Fail, "waiting for plan 5"},
		{"policy-accepted", "a plan of just now, which it refuses", waiting(time.Second, func(s *Snapshot) {
			s.Hub.Reported = append(s.Hub.Reported, falseCondition(v1alpha1.ConditionPlanAccepted, v1alpha1.ReasonPlanOlder, "older"))
		}), Fail, "waiting for plan 5"},
		{"policy-accepted", "its first plan", waiting(time.Second, func(s *Snapshot) {
			s.Hub.Reported = append(s.Hub.Reported, falseCondition(v1alpha1.ConditionPlanAccepted, v1alpha1.ReasonNoPlan, "no plan"))
		}), Skip, "in progress"},
		{"policy-accepted", "a policy that is refused", waiting(time.Second, func(s *Snapshot) {
			s.Hub.Conditions[2].Reason = v1alpha1.ReasonPolicyRefused
		}), Fail, "PolicyRefused"},
		{"policy-accepted", "refused there", reportsFalse(3, v1alpha1.ConditionPolicyAccepted, "PolicyInvalid", "concurrency"), Fail, "concurrency"},
		{"agent-rights", "complete", unchanged, Pass, "all is well"},
		{"agent-rights", "missing", reportsFalse(0, v1alpha1.ConditionRightsComplete, "RightsMissing", "list pods"), Fail, "list pods"},
		{"agent-rights", "of a silent member", silent, Skip, "silent"},
		{"budget-guarded", "not in force", reportsFalse(1, v1alpha1.ConditionBudgetGuarded, "PolicyNotInForce", "binding"), Fail, "binding"},
		{"one-download", "not in force", reportsFalse(2, v1alpha1.ConditionOneDownload, "NotApplied", "importer"), Warn, "importer"},
		{"default-sc", "nothing is reported", unchanged, Skip, "shows nothing"},
		{"default-sc", "reported", reports(v1alpha1.ReasonStorageClassMissing, "gp4"), Fail, "farm/ubuntu"},
		{"snapshot-class-driver", "reported", reports(v1alpha1.ReasonSnapshotClassMismatch, "driver"), Fail, "SnapshotClassMismatch: driver"},
		{"storage-profile-complete", "reported", reports(v1alpha1.ReasonStorageProfileIncomplete, "modes"), Fail, "modes"},
		{"csi-capacity", "reported", reports(v1alpha1.ReasonInsufficientStorage, "needs a volume of 24Gi"), Fail, "24Gi"},
		{"csi-capacity", "of a quota", reports(v1alpha1.ReasonInsufficientStorage, "ResourceQuota farm/q has 1Gi left"), Skip, "shows nothing"},
		{"quota-three-claims", "reported", reports(v1alpha1.ReasonInsufficientStorage, "ResourceQuota farm/q has 1Gi left"), Fail, "1Gi left"},
		{"namespace-exists", "reported", reports(v1alpha1.ReasonNamespaceMissing, "farm"), Fail, "NamespaceMissing"},
		{"secret-keys", "reported", reports(v1alpha1.ReasonSecretMissing, "s3"), Fail, "SecretMissing"},
		{"cdi-present", "reported", reports(v1alpha1.ReasonCDIMissing, "install CDI"), Fail, "install CDI"},
		{"cdi-version-known", "reported", reports(v1alpha1.ReasonCDITooOld, "checksum"), Fail, "checksum"},
		{"webhook-timeouts", "reported", reports(v1alpha1.ReasonCDIUnavailable, "no answer"), Fail, "no answer"},
		{"snapshot-controller", "reported", reports(v1alpha1.ReasonSnapshotFailed, "not ready"), Fail, "not ready"},
	} {
		t.Run(tt.id+"/"+tt.name, func(t *testing.T) { runCase(t, healthyHubView(), tt) })
	}
}

func TestHealthyHubViewPasses(t *testing.T) {
	assert.Equal(t, exit.Yes, Examine(healthyHubView()).ExitCode())
}

// A pipeline that asks while a plan is on its way goes on.
func TestPlanOnItsWayIsNoFailure(t *testing.T) {
	s := healthyHubView()
	s.ServerTime = testTime
	s.Hub.Conditions[2] = falseCondition(v1alpha1.ConditionPolicyAcknowledged, v1alpha1.ReasonNotAcknowledged, "waiting for plan 5")
	s.Hub.Conditions[2].LastTransitionTime = metav1.NewTime(testTime)
	assert.Equal(t, exit.Yes, Examine(s).ExitCode())
}

// No member of that name, or no right to read it.
func TestUnreadMember(t *testing.T) {
	s := &Snapshot{View: ViewHub, Unread: map[Source]string{SourceMember: "needs get memberclusters.pelotech.ot"}}
	r := Examine(s)
	require.NotZero(t, r.Summary.Unread)
	assert.Equal(t, exit.Unanswered, r.ExitCode())
}
