//go:build linux

package outage_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/hub/web"
)

// TestMemberWithoutAgent shows that the state of a member without an agent is unknown,
// not zero.
func TestMemberWithoutAgent(t *testing.T) {
	s := shared.Members[lab]
	if s.Agent != nil {
		s.stopAgent(t)
		require.NoError(t, s.Client().DeleteAllOf(t.Context(), &v1alpha1.ClusterReport{}, client.InNamespace(program.AgentNamespace)))
	}
	require.NoError(t, shared.createMember(t.Context(), lab))
	t.Cleanup(func() { shared.removeMember(t, lab) })
	m := shared.awaitMember(t, lab, "reachable, and never reported",
		hasCondition(v1alpha1.ConditionReachable, metav1.ConditionTrue, v1alpha1.ReasonConnected),
		hasCondition(v1alpha1.ConditionAgentHealthy, metav1.ConditionUnknown, v1alpha1.ReasonNeverReported, "check that ot-agent runs"),
		hasCondition(v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonNeverReported))
	for _, c := range m.Status.Conditions {
		if c.Type != v1alpha1.ConditionReachable {
			assert.Equal(t, metav1.ConditionUnknown, c.Status, "%s: %s", c.Type, c.Message)
		}
	}
	assert.Nil(t, m.Status.Budget)
	assert.Nil(t, m.Status.SlotsUsed)
	assert.Nil(t, m.Status.Images)
	assert.Nil(t, m.Status.References)
	assert.Nil(t, m.Status.LastReport)
	assert.Nil(t, m.Status.Plan, "it might know a newer one")
	var told web.Member
	require.True(t, testenv.Await(t, func() bool {
		told = shared.getMemberFromReadAPI(t, lab)
		return told.Reachable == metav1.ConditionTrue
	}))
	assert.Nil(t, told.Budget)
	assert.NotEmpty(t, told.Unknown)
	metrics, err := shared.Hub.ReadMetrics(t.Context())
	require.NoError(t, err)
	assert.NotContains(t, metrics, `ot_hub_member_budget{member="lab"}`)

	require.NoError(t, s.startAgent(t.Context()))
	shared.awaitMember(t, lab, "healthy", isHealthy, hasBudget(2))
	require.True(t, testenv.Await(t, func() bool { return shared.getMemberFromReadAPI(t, lab).Unknown == "" }))
}

// removeMember takes a member out of the fleet.
func (f *testFleet) removeMember(t *testing.T, name string) {
	t.Helper()
	ctx := context.Background()
	m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	require.NoError(t, client.IgnoreNotFound(f.Delete(ctx, m)))
	f.awaitGone(t, m)
	f.awaitGone(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.MemberNamespacePrefix + name}})
}

func (f *testFleet) awaitGone(t *testing.T, o client.Object) {
	t.Helper()
	require.Eventually(t, func() bool {
		return apierrors.IsNotFound(f.Get(context.Background(), client.ObjectKeyFromObject(o), o))
	}, patience, tick, "%T %s is still there", o, o.GetName())
}
