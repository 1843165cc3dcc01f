//go:build linux

package fleet_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestHungMemberCanBeRemoved shows that a hung member can be removed, that the hub
// reports what it could not clean up, and that the member reuses the leftovers when it
// returns.
func TestHungMemberCanBeRemoved(t *testing.T) {
	m := shared.AwaitMember(t, edge, "ready", hasBudget(1))
	member := shared.Members[edge]
	require.NoError(t, member.ControlPlane.PauseAPIServer(t.Context()))
	resumed := false
	resume := func() {
		if !resumed {
			resumed = true
			require.NoError(t, member.ControlPlane.ResumeAPIServer())
			// The agent may have lost its Lease and exit soon: a kubelet restarts it.
			member.Agent.Kill()
			<-member.Agent.Done()
			require.NoError(t, member.StartAgent(context.Background()))
		}
	}
	t.Cleanup(resume)
	require.NoError(t, shared.Delete(t.Context(), m))
	shared.AwaitGone(t, m.DeepCopy())
	require.True(t, testenv.AwaitCondition(t, func() bool {
		var list eventsv1.EventList
		require.NoError(t, shared.List(t.Context(), &list))
		for i := range list.Items {
			if e := &list.Items[i]; e.Reason == "NotCleanedUp" && e.Regarding.Name == edge && strings.Contains(e.Note, "namespace "+program.AgentNamespace) {
				return true
			}
		}
		return false
	}), "no event says what is left")
	assert.Equal(t, ptr.To[int32](5), shared.GetMember(t, frankfurt).Status.Budget, "the other member changed")

	resume()
	require.NoError(t, shared.Join(t.Context(), shared.Members[edge]))
	after := shared.AwaitMember(t, edge, "back with a newer plan than the one left there", hasBudget(1))
	assert.Positive(t, after.Status.Plan.Compare(*m.Status.Plan))
}

// TestClusterRegisteredTwice shows that a cluster with two members is planned for under
// the first, and that the second leaves no trace in it.
func TestClusterRegisteredTwice(t *testing.T) {
	first := shared.AwaitMember(t, edge, "ready", hasBudget(1))
	inMember := client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.MailboxName}
	plan := func() *v1alpha1.ClusterPlan {
		t.Helper()
		p := &v1alpha1.ClusterPlan{}
		require.NoError(t, shared.Members[edge].Client().Get(t.Context(), inMember, p))
		return p
	}
	before := plan()

	second := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "again", Labels: map[string]string{"edge": "true"}}, Spec: *first.Spec.DeepCopy()}
	require.NoError(t, shared.Create(t.Context(), second))
	refused := shared.AwaitMember(t, "again", "refused", func(m *v1alpha1.MemberCluster) bool {
		return hasReason(m, v1alpha1.ConditionReady, v1alpha1.ReasonDuplicateCluster) && isConditionTrue(m, v1alpha1.ConditionReachable)
	})
	assert.True(t, hasReason(refused, v1alpha1.ConditionIdentityConfirmed, v1alpha1.ReasonDuplicateCluster))
	assert.Contains(t, refused.Status.Conditions[0].Message, "MemberCluster edge")
	assert.Empty(t, refused.Status.ClusterUID)
	assert.Nil(t, refused.Status.Plan)
	assert.Nil(t, refused.Status.References)
	shared.awaitMetric(t, `ot_hub_members{state="unknown"}`, 1)
	inHub := client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + "again", Name: v1alpha1.MailboxName}
	assert.True(t, apierrors.IsNotFound(shared.Get(t.Context(), inHub, &v1alpha1.ClusterPlan{})))

	// A change of policy makes one plan, and a report that answers it none.
	shared.SetPolicyForTest(t, map[string]string{"overrides": "- selector: {matchLabels: {edge: \"true\"}}\n  concurrency: \"2\"\n"})
	after := shared.AwaitMember(t, edge, "its new budget", hasBudget(2))
	assert.Equal(t, first.Status.Plan.Epoch, after.Status.Plan.Epoch)
	assert.Equal(t, first.Status.Plan.Sequence+1, after.Status.Plan.Sequence)

	require.NoError(t, shared.Delete(t.Context(), second))
	shared.AwaitGone(t, second)
	assert.Equal(t, before.UID, plan().UID, "the first one's plan was never deleted")
	assert.Equal(t, *after.Status.Plan, plan().Spec.PlanVersion)
	assert.Equal(t, after.Status.Plan, shared.GetMember(t, edge).Status.Plan)
}
