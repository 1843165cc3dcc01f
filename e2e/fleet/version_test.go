//go:build linux

package fleet_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
)

// versions start the hub, and the agent of frankfurt, as of versions, until the test ends.
func versions(t *testing.T) (hubOf, agentOf func(ctx context.Context, version string)) {
	t.Helper()
	site := shared.sites["frankfurt"]
	agentOf = func(ctx context.Context, version string) {
		t.Helper()
		require.NoError(t, site.agent.Stop(patience))
		require.NoError(t, site.startAgent(ctx, version))
	}
	hubOf = func(ctx context.Context, version string) {
		t.Helper()
		require.NoError(t, shared.hub.Stop(patience))
		require.NoError(t, shared.startHubOf(ctx, version))
	}
	t.Cleanup(func() {
		hubOf(context.Background(), "")
		agentOf(context.Background(), "")
	})
	return hubOf, agentOf
}

// A hub that is two minor versions ahead of an agent says so, and goes on carrying; once
// the agent is one behind, all is well.
func TestAgentOfAnotherVersion(t *testing.T) {
	const hubs = "v1.4.0"
	hubOf, agentOf := versions(t)
	hubOf(t.Context(), hubs)
	unjudged := shared.eventually(t, "frankfurt", "of no release", func(m *v1alpha1.MemberCluster) bool {
		return because(m, v1alpha1.ConditionVersionSupported, v1alpha1.ReasonVersionUnknown) && is(m, v1alpha1.ConditionReady)
	})
	assert.Equal(t, "dev", unjudged.Status.AgentVersion)

	agentOf(t.Context(), "v1.2.0")
	old := shared.eventually(t, "frankfurt", "too old", func(m *v1alpha1.MemberCluster) bool {
		return because(m, v1alpha1.ConditionVersionSupported, v1alpha1.ReasonVersionTooOld) && because(m, v1alpha1.ConditionReady, v1alpha1.ReasonVersionTooOld)
	})
	assert.Equal(t, "v1.2.0", old.Status.AgentVersion)
	assert.Contains(t, meta.FindStatusCondition(old.Status.Conditions, v1alpha1.ConditionReady).Message, "upgrade it with chart ot-agent")
	shared.awaitMetric(t, `ot_hub_member_version_supported{member="frankfurt"}`, 0)
	shared.setPolicy(t, map[string]string{"retryLimit": "2"})
	carried := shared.eventually(t, "frankfurt", "told of the policy all the same", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Plan != nil && m.Status.Plan.Compare(*old.Status.Plan) > 0 && is(m, v1alpha1.ConditionPolicyAcknowledged)
	})
	assert.True(t, because(carried, v1alpha1.ConditionVersionSupported, v1alpha1.ReasonVersionTooOld))

	agentOf(t.Context(), "v1.3.7")
	shared.eventually(t, "frankfurt", "upgraded", func(m *v1alpha1.MemberCluster) bool {
		return because(m, v1alpha1.ConditionVersionSupported, v1alpha1.ReasonSupported) && is(m, v1alpha1.ConditionReady)
	})
	shared.awaitMetric(t, `ot_hub_member_version_supported{member="frankfurt"}`, 1)
}

// The hub is upgraded first: the member's kinds do not have a field of its plans. All else
// of them is acknowledged, and the hub says what is lost: as long as the agent is of the
// release before nobody has to mind, and then somebody has to.
func TestKindsOfTheReleaseBefore(t *testing.T) {
	const field = "ClusterPlan.spec.policySource"
	site := shared.sites["frankfurt"]
	shared.eventually(t, "frankfurt", "at rest", func(m *v1alpha1.MemberCluster) bool { return is(m, v1alpha1.ConditionReady) })
	require.NotEmpty(t, site.planSource(t), "the plan has what is to be lost")
	newest, err := site.ControlPlane.Older(t.Context(), "clusterplans.pelotech.ot", "spec.policySource")
	require.NoError(t, err)
	upgrade := sync.OnceFunc(func() { require.NoError(t, newest(context.Background())) })
	t.Cleanup(upgrade)
	hubOf, agentOf := versions(t)
	hubOf(t.Context(), "v1.4.0")
	agentOf(t.Context(), "v1.3.7")
	says := func(text string) func(*v1alpha1.MemberCluster) bool {
		return func(m *v1alpha1.MemberCluster) bool {
			c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionVersionSupported)
			return c != nil && strings.Contains(c.Message, text)
		}
	}
	shared.setPolicy(t, map[string]string{"retryLimit": "4"})
	shared.eventually(t, "frankfurt", "told of the policy, and not of all", says("do not have "+field), func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Policy.Data["retryLimit"] == "4" && is(m, v1alpha1.ConditionPolicyAcknowledged) && is(m, v1alpha1.ConditionReady)
	})
	assert.Empty(t, site.planSource(t))

	agentOf(t.Context(), "v1.4.0")
	shared.eventually(t, "frankfurt", "upgraded without its kinds", says("Apply the CustomResourceDefinitions"), func(m *v1alpha1.MemberCluster) bool {
		return because(m, v1alpha1.ConditionVersionSupported, v1alpha1.ReasonKindsOlder) && because(m, v1alpha1.ConditionReady, v1alpha1.ReasonKindsOlder) &&
			is(m, v1alpha1.ConditionPolicyAcknowledged)
	})
	shared.awaitMetric(t, `ot_hub_member_version_supported{member="frankfurt"}`, 0)

	upgrade()
	agentOf(t.Context(), "v1.4.0")
	shared.eventually(t, "frankfurt", "upgraded", func(m *v1alpha1.MemberCluster) bool {
		return because(m, v1alpha1.ConditionVersionSupported, v1alpha1.ReasonSupported) && is(m, v1alpha1.ConditionReady)
	})
	assert.NotEmpty(t, site.planSource(t))
}

// planSource is what the member's copy of the plan says of where its policy is from.
func (s *site) planSource(t *testing.T) string {
	t.Helper()
	plan := &v1alpha1.ClusterPlan{}
	require.NoError(t, s.Client().Get(t.Context(), client.ObjectKey{Namespace: agent.Namespace, Name: v1alpha1.MailboxName}, plan))
	return plan.Spec.PolicySource
}
