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
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// releaseVersions returns functions that restart the hub, and the agent of frankfurt, as a
// version until the test ends.
func releaseVersions(t *testing.T) (restartHub, restartAgent func(ctx context.Context, version string)) {
	t.Helper()
	member := shared.Members[frankfurt]
	restartAgent = func(ctx context.Context, version string) {
		t.Helper()
		require.NoError(t, member.Agent.Stop(testenv.Patience))
		var err error
		member.Agent, err = member.RunAgent(ctx, program.Options{Version: version})
		require.NoError(t, err)
	}
	restartHub = func(ctx context.Context, version string) {
		t.Helper()
		require.NoError(t, shared.Hub.Stop(testenv.Patience))
		var err error
		shared.Hub, err = shared.RunHub(ctx, program.Options{LeaseDuration: program.LongLease, Version: version})
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		restartHub(context.Background(), "")
		restartAgent(context.Background(), "")
	})
	return restartHub, restartAgent
}

// TestAgentVersionSkew shows that a hub two minor versions ahead of an agent reports the
// skew and keeps syncing, and that one minor version is no problem.
func TestAgentVersionSkew(t *testing.T) {
	const hubVersion = "v1.4.0"
	restartHub, restartAgent := releaseVersions(t)
	restartHub(t.Context(), hubVersion)
	unjudged := shared.AwaitMember(t, frankfurt, "of no release", func(m *v1alpha1.MemberCluster) bool {
		return hasReason(m, v1alpha1.ConditionVersionSupported, v1alpha1.ReasonVersionUnknown) && isConditionTrue(m, v1alpha1.ConditionReady)
	})
	assert.Equal(t, "dev", unjudged.Status.AgentVersion)

	restartAgent(t.Context(), "v1.2.0")
	old := shared.AwaitMember(t, frankfurt, "too old", func(m *v1alpha1.MemberCluster) bool {
		return hasReason(m, v1alpha1.ConditionVersionSupported, v1alpha1.ReasonVersionTooOld) && hasReason(m, v1alpha1.ConditionReady, v1alpha1.ReasonVersionTooOld)
	})
	assert.Equal(t, "v1.2.0", old.Status.AgentVersion)
	assert.Contains(t, meta.FindStatusCondition(old.Status.Conditions, v1alpha1.ConditionReady).Message, "upgrade it with chart ot-agent")
	shared.awaitMetric(t, `ot_hub_member_version_supported{member="frankfurt"}`, 0)
	shared.SetPolicyForTest(t, map[string]string{"retryLimit": "2"})
	carried := shared.AwaitMember(t, frankfurt, "told of the policy all the same", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Plan != nil && m.Status.Plan.Compare(*old.Status.Plan) > 0 && isConditionTrue(m, v1alpha1.ConditionPolicyAcknowledged)
	})
	assert.True(t, hasReason(carried, v1alpha1.ConditionVersionSupported, v1alpha1.ReasonVersionTooOld))

	restartAgent(t.Context(), "v1.3.7")
	shared.AwaitMember(t, frankfurt, "upgraded", func(m *v1alpha1.MemberCluster) bool {
		return hasReason(m, v1alpha1.ConditionVersionSupported, v1alpha1.ReasonSupported) && isConditionTrue(m, v1alpha1.ConditionReady)
	})
	shared.awaitMetric(t, `ot_hub_member_version_supported{member="frankfurt"}`, 1)
}

// TestCRDsOfPreviousRelease upgrades the hub first: the member's CRDs lack a field of its
// plans. The agent acknowledges the rest, and the hub reports the lost field, as a
// problem only once the agent is newer than its CRDs.
func TestCRDsOfPreviousRelease(t *testing.T) {
	const field = "ClusterPlan.spec.policySource"
	member := shared.Members[frankfurt]
	shared.AwaitMember(t, frankfurt, "at rest", func(m *v1alpha1.MemberCluster) bool { return isConditionTrue(m, v1alpha1.ConditionReady) })
	require.NotEmpty(t, getPlanSource(t, member), "the plan has the field")
	newest, err := member.ControlPlane.RemoveFields(t.Context(), "clusterplans.pelotech.ot", "spec.policySource")
	require.NoError(t, err)
	upgrade := sync.OnceFunc(func() { require.NoError(t, newest(context.Background())) })
	t.Cleanup(upgrade)
	restartHub, restartAgent := releaseVersions(t)
	restartHub(t.Context(), "v1.4.0")
	restartAgent(t.Context(), "v1.3.7")
	says := func(text string) func(*v1alpha1.MemberCluster) bool {
		return func(m *v1alpha1.MemberCluster) bool {
			c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionVersionSupported)
			return c != nil && strings.Contains(c.Message, text)
		}
	}
	shared.SetPolicyForTest(t, map[string]string{"retryLimit": "4"})
	shared.AwaitMember(t, frankfurt, "told of the policy, and not of all", says("lack "+field), func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Policy.Data["retryLimit"] == "4" && isConditionTrue(m, v1alpha1.ConditionPolicyAcknowledged) && isConditionTrue(m, v1alpha1.ConditionReady)
	})
	assert.Empty(t, getPlanSource(t, member))

	restartAgent(t.Context(), "v1.4.0")
	shared.AwaitMember(t, frankfurt, "upgraded without its kinds", says("apply the CRDs"), func(m *v1alpha1.MemberCluster) bool {
		return hasReason(m, v1alpha1.ConditionVersionSupported, v1alpha1.ReasonKindsOlder) && hasReason(m, v1alpha1.ConditionReady, v1alpha1.ReasonKindsOlder) &&
			isConditionTrue(m, v1alpha1.ConditionPolicyAcknowledged)
	})
	shared.awaitMetric(t, `ot_hub_member_version_supported{member="frankfurt"}`, 0)

	upgrade()
	restartAgent(t.Context(), "v1.4.0")
	shared.AwaitMember(t, frankfurt, "upgraded", func(m *v1alpha1.MemberCluster) bool {
		return hasReason(m, v1alpha1.ConditionVersionSupported, v1alpha1.ReasonSupported) && isConditionTrue(m, v1alpha1.ConditionReady)
	})
	assert.NotEmpty(t, getPlanSource(t, member))
}

// getPlanSource returns policySource of the member's copy of its plan.
func getPlanSource(t *testing.T, m *fleet.Member) string {
	t.Helper()
	plan := &v1alpha1.ClusterPlan{}
	require.NoError(t, m.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.MailboxName}, plan))
	return plan.Spec.PolicySource
}
