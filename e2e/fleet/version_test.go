//go:build linux

package fleet_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A hub that is two minor versions ahead of an agent says so, and goes on carrying; once
// the agent is one behind, all is well.
func TestAgentOfAnotherVersion(t *testing.T) {
	const hubs = "v1.4.0"
	site := shared.sites["frankfurt"]
	agentOf := func(ctx context.Context, version string) {
		require.NoError(t, site.agent.Stop(patience))
		require.NoError(t, site.startAgent(ctx, version))
	}
	hubOf := func(ctx context.Context, version string) {
		require.NoError(t, shared.hub.Stop(patience))
		require.NoError(t, shared.startHubOf(ctx, version))
	}
	t.Cleanup(func() {
		hubOf(context.Background(), "")
		agentOf(context.Background(), "")
	})
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
