package memberstatus_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

func TestVersionSkew(t *testing.T) {
	const (
		yes  = metav1.ConditionTrue
		no   = metav1.ConditionFalse
		open = metav1.ConditionUnknown
	)
	for name, tt := range map[string]struct {
		hub, agent  string
		wantStatus  metav1.ConditionStatus
		wantReason  string
		wantMessage string // a part of it
		wantReady   metav1.ConditionStatus
	}{
		"the same":                   {"v1.2.3", "v1.2.3", yes, v1alpha1.ReasonSupported, "", yes},
		"another patch":              {"v1.2.3", "v1.2.9", yes, v1alpha1.ReasonSupported, "", yes},
		"one minor older":            {"v1.2.3", "v1.1.9", yes, v1alpha1.ReasonSupported, "", yes},
		"one minor newer":            {"v1.2.3", "v1.3.0", yes, v1alpha1.ReasonSupported, "", yes},
		"two minors older":           {"v1.2.0", "v1.0.9", no, v1alpha1.ReasonVersionTooOld, "upgrade it with chart ot-agent", no},
		"two minors newer":           {"v1.2.9", "v1.4.0", no, v1alpha1.ReasonVersionTooNew, "upgrade the hub", no},
		"a major version older":      {"v2.0.0", "v1.9.0", no, v1alpha1.ReasonVersionTooOld, "agent v1.9.0", no},
		"a major version newer":      {"v1.9.0", "v2.0.0", no, v1alpha1.ReasonVersionTooNew, "hub v1.9.0", no},
		"the minor of another major": {"v2.3.0", "v1.3.0", no, v1alpha1.ReasonVersionTooOld, "hub v2.3.0", no},
		"before a release":           {"v1.2.0-rc.1", "v1.1.0", yes, v1alpha1.ReasonSupported, "", yes},
		"after a release, as built":  {"v1.2.3-4-gabcdef0-dirty", "v1.0.0", no, v1alpha1.ReasonVersionTooOld, "", no},
		"without a v":                {"1.2.3", "1.4", no, v1alpha1.ReasonVersionTooNew, "", no},
		"a hub of no release":        {"dev", "v1.2.3", open, v1alpha1.ReasonVersionUnknown, `the hub "dev"`, yes},
		"an agent of no release":     {"v1.2.3", "8da7d18", open, v1alpha1.ReasonVersionUnknown, `version "8da7d18"`, yes},
		"an agent that says none":    {"v1.2.3", "", open, v1alpha1.ReasonVersionUnknown, "", yes},
	} {
		t.Run(name, func(t *testing.T) {
			status, _ := memberstatus.Compute(healthyInputWith(func(v *memberstatus.Input) { v.HubVersion, v.Report.AgentVersion = tt.hub, tt.agent }))
			got := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionVersionSupported)
			apitest.AssertCondition(t, got, tt.wantStatus, tt.wantReason, tt.wantMessage)
			ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
			assert.Equal(t, tt.wantReady, ready.Status)
			if tt.wantStatus == no {
				assert.Equal(t, tt.wantReason, ready.Reason)
			}
		})
	}
}

func TestOlderKindsAreReported(t *testing.T) {
	const (
		field = "ClusterPlan.spec.retired"
		yes   = metav1.ConditionTrue
		no    = metav1.ConditionFalse
	)
	for name, tt := range map[string]struct {
		hub, agent  string
		wantStatus  metav1.ConditionStatus
		wantReason  string
		wantMessage string // a part of it
	}{
		"the agent is of the release before": {"v1.3.0", "v1.2.9", yes, v1alpha1.ReasonSupported, "lack " + field + " until chart ot-agent is upgraded"},
		"the agent was upgraded without":     {"v1.3.0", "v1.3.0", no, v1alpha1.ReasonKindsOlder, "lack " + field + ", which the plan loses: apply the CRDs"},
		"the agent is newer than the hub":    {"v1.3.0", "v1.4.0", no, v1alpha1.ReasonKindsOlder, field},
		"builds of no release":               {"dev", "dev", no, v1alpha1.ReasonKindsOlder, field},
		"the agent is too old":               {"v1.3.0", "v1.1.0", no, v1alpha1.ReasonVersionTooOld, "upgrade it with chart ot-agent"},
		"the agent is too new":               {"v1.3.0", "v1.5.0", no, v1alpha1.ReasonVersionTooNew, "upgrade the hub"},
	} {
		t.Run(name, func(t *testing.T) {
			status, _ := memberstatus.Compute(healthyInputWith(func(v *memberstatus.Input) {
				v.HubVersion, v.Report.AgentVersion, v.UnsupportedFields = tt.hub, tt.agent, []string{field}
			}))
			got := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionVersionSupported)
			apitest.AssertCondition(t, got, tt.wantStatus, tt.wantReason, tt.wantMessage)
			assert.Equal(t, tt.wantStatus, meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady).Status)
		})
	}
}

func TestVersionSkewOfInstalledAgent(t *testing.T) {
	status, _ := memberstatus.Compute(healthyInputWith(func(v *memberstatus.Input) {
		v.HubVersion, v.Report.AgentVersion = "v1.2.0", "v1.0.0"
		v.Installed = &metav1.Condition{Type: v1alpha1.ConditionAgentInstalled, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonInstallFailed}
	}))
	got := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionVersionSupported)
	require.NotNil(t, got)
	assert.Contains(t, got.Message, "see AgentInstalled")
	assert.NotContains(t, got.Message, "upgrade it", "the hub upgrades what it installed")
}
