//go:build linux

package outage_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// TestMemberWithoutAgent shows that the state of a member without an agent is unknown,
// not zero.
func TestMemberWithoutAgent(t *testing.T) {
	s := shared.Members[lab]
	if s.Agent != nil {
		s.stopAgent(t)
		require.NoError(t, s.Client().DeleteAllOf(t.Context(), &v1alpha1.ClusterReport{}, client.InNamespace(program.AgentNamespace)))
	}
	require.NoError(t, shared.Join(t.Context(), s.Member))
	t.Cleanup(func() { shared.removeMember(t, lab) })
	m := shared.AwaitMember(t, lab, "reachable, and never reported",
		hasCondition(v1alpha1.ConditionReachable, metav1.ConditionTrue, v1alpha1.ReasonConnected),
		hasCondition(v1alpha1.ConditionAgentHealthy, metav1.ConditionUnknown, v1alpha1.ReasonNeverReported, "check that ot-agent runs"),
		hasCondition(v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonNeverReported))
	for _, c := range m.Status.Conditions {
		switch c.Type {
		case v1alpha1.ConditionReachable, v1alpha1.ConditionServerVerified, v1alpha1.ConditionCredentialRotated: // about the connection
		case v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled: // never Unknown
		default:
			assert.Equal(t, metav1.ConditionUnknown, c.Status, "%s: %s", c.Type, c.Message)
		}
	}
	assert.Nil(t, m.Status.Budget)
	assert.Nil(t, m.Status.SlotsUsed)
	assert.Nil(t, m.Status.Images)
	assert.Nil(t, m.Status.References)
	assert.Nil(t, m.Status.LastReport)
	assert.Nil(t, m.Status.Plan, "the cluster may have a newer one")
	read := shared.awaitReadMember(t, lab, func(m readapi.Member) bool { return m.Reachable == metav1.ConditionTrue })
	assert.Nil(t, read.Budget)
	assert.NotEmpty(t, read.Unknown)
	metrics, err := shared.Hub.ReadMetrics(t.Context())
	require.NoError(t, err)
	assert.NotContains(t, metrics, `ot_hub_member_budget{member="lab"}`)

	require.NoError(t, s.StartAgent(t.Context()))
	shared.AwaitMember(t, lab, "healthy", isHealthy, hasBudget(2))
	shared.awaitReadMember(t, lab, isKnown)
}

// removeMember deletes a MemberCluster and waits for its namespace to go.
func (f *testFleet) removeMember(t *testing.T, name string) {
	t.Helper()
	ctx := context.Background()
	m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	require.NoError(t, client.IgnoreNotFound(f.Delete(ctx, m)))
	f.AwaitGone(t, m)
	f.AwaitGone(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.MemberNamespacePrefix + name}})
}
