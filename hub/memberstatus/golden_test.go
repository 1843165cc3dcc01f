package memberstatus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest/statuscheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// api/kstatus tests how clients that wait read these statuses.
func TestGoldenStatuses(t *testing.T) {
	notConnected := func(reason string) func(*memberstatus.Input) {
		return func(v *memberstatus.Input) {
			v.Connection = memberstatus.Connection{Known: reason != "", Reason: reason, Message: "as the connection says"}
			v.Report, v.ReportClusterUID, v.ReceivedAt, v.Totals, v.Plan = nil, "", nil, nil, nil
		}
	}
	joined := func(reason string) func(*memberstatus.Input) {
		return func(v *memberstatus.Input) {
			notConnected("")(v)
			v.Connection = memberstatus.Connection{PullMode: true}
			v.Joined = &metav1.Condition{Type: v1alpha1.ConditionJoined, Status: metav1.ConditionFalse, Reason: reason, Message: "as the registration says"}
		}
	}
	installed := func(status metav1.ConditionStatus, reason string) func(*memberstatus.Input) {
		return func(v *memberstatus.Input) {
			v.Installed = &metav1.Condition{Type: v1alpha1.ConditionAgentInstalled, Status: status, Reason: reason, Message: "as the installation says"}
		}
	}
	obstacle := func(reason string) func(*memberstatus.Input) {
		return func(v *memberstatus.Input) {
			v.Obstacle = memberstatus.Obstacle{Reason: reason, Message: "as the planner says"}
		}
	}
	objects := map[string]statuscheck.Object{}
	for name, change := range map[string]func(*memberstatus.Input){
		"Ready":                            func(*memberstatus.Input) {},
		"NeverConnected":                   notConnected(""),
		"CredentialsMissing":               notConnected(v1alpha1.ReasonCredentialsMissing),
		"Unreachable":                      notConnected(v1alpha1.ReasonUnreachable),
		"ConnectionChanged":                func(v *memberstatus.Input) { v.Connection = memberstatus.Connection{SpecChanged: true} },
		"ConnectionChanged, no report yet": func(v *memberstatus.Input) { v.Connection.ReportPending = true },
		"Silent": func(v *memberstatus.Input) {
			received := now.Add(-time.Hour)
			v.ReceivedAt = &received
		},
		"Quarantined": func(v *memberstatus.Input) {
			v.Member.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "reports too much"}
		},
		"AnotherCluster": func(v *memberstatus.Input) {
			v.Member.Status.ClusterUID, v.OtherClusterUID = uid, "22222222-0000-0000-0000-000000000000"
		},
		"DuplicateCluster":         func(v *memberstatus.Input) { v.Holder = "paris" },
		"TwoAgents":                func(v *memberstatus.Input) { v.TwoAgentsAt = v.Now },
		"AwaitingAgent":            joined(v1alpha1.ReasonAwaitingAgent),
		"AwaitingAcceptance":       joined(v1alpha1.ReasonAwaitingAcceptance),
		"JoinTokenExpired":         joined(v1alpha1.ReasonJoinTokenExpired),
		"Revoking":                 joined(v1alpha1.ReasonRevoking),
		"Revoked":                  joined(v1alpha1.ReasonRevoked),
		"Installing":               installed(metav1.ConditionUnknown, v1alpha1.ReasonInstalling),
		"ForeignAgent":             installed(metav1.ConditionFalse, v1alpha1.ReasonForeignAgent),
		"InstallFailed":            installed(metav1.ConditionFalse, v1alpha1.ReasonInstallFailed),
		"InstallAttemptsExhausted": installed(metav1.ConditionFalse, v1alpha1.ReasonInstallAttemptsExhausted),
		"NamespaceTaken":           obstacle(v1alpha1.ReasonNamespaceTaken),
		"NamespaceMissing":         obstacle(string(v1alpha1.ReasonNamespaceMissing)),
		"NamespaceTerminating":     obstacle(string(v1alpha1.ReasonNamespaceTerminating)),
		"NotAcknowledged": func(v *memberstatus.Input) {
			v.Plan = newPlan(planVersion(1, 5), concurrencyPolicy(3))
		},
		"PolicyHeld":    func(v *memberstatus.Input) { withHeldPolicy(v.Plan, concurrencyPolicy(5)) },
		"AnotherHub":    func(v *memberstatus.Input) { v.Contested = true },
		"VersionTooOld": func(v *memberstatus.Input) { v.HubVersion = "v1.9.0" },
		"VersionTooOld, the hub upgrades": func(v *memberstatus.Input) {
			installed(metav1.ConditionTrue, v1alpha1.ReasonInstalled)(v)
			v.HubVersion = "v1.9.0"
		},
		"ReportOversized": func(v *memberstatus.Input) { v.Excess.IgnoredPages = 1 },
	} {
		v := healthyInputWith(change)
		status, _ := memberstatus.Compute(v)
		objects[name] = statuscheck.Object{Status: &status}
	}
	statuscheck.CompareGolden(t, "MemberCluster", objects)
}

// A column of ages shows how long a member has been silent, and nothing while it is not:
// lastReport lags behind by up to a minute.
func TestSilentSince(t *testing.T) {
	v := withStoredStatus(healthyInput())
	assert.Nil(t, v.Member.Status.SilentSince)
	heard := *v.ReceivedAt
	v.Now = now.Add(time.Hour)
	v = withStoredStatus(v)
	assert.Equal(t, heard, v.Member.Status.SilentSince.UTC(), "when it was last heard")

	v.ReceivedAt = nil // the hub was restarted
	v.WatchedSince = v.Now.Add(-30 * time.Minute)
	v = withStoredStatus(v)
	assert.Equal(t, heard, v.Member.Status.SilentSince.UTC())

	heard = v.Now
	v.ReceivedAt = &heard
	v = withStoredStatus(v)
	assert.Nil(t, v.Member.Status.SilentSince, "it reports again")
}
