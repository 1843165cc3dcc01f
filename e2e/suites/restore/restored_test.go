//go:build linux

package restore_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// isHeld tells that a member keeps a policy that the restored hub does not know.
func isHeld(budget int32) func(*v1alpha1.MemberCluster) bool {
	return func(m *v1alpha1.MemberCluster) bool {
		c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionPolicyAcknowledged)
		return c != nil && c.Reason == v1alpha1.ReasonPolicyHeld && m.Status.Budget != nil && *m.Status.Budget == budget &&
			m.Status.AcknowledgedPlan != nil && m.Status.Plan != nil && m.Status.AcknowledgedPlan.Compare(*m.Status.Plan) == 0
	}
}

// TestHubRestoredFromBackup runs last in the package, with the other test that restores a
// hub, because of their file names: the simulated CDI in the hub's cluster does not
// resume its watches after a restore.
func TestHubRestoredFromBackup(t *testing.T) {
	h := shared.startHub(t, nil)
	shared.awaitAcknowledged(t, shared.setNewBudget(t))
	require.NoError(t, h.Stop(testenv.Patience))
	backup, err := shared.HubMember.ControlPlane.Backup(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, backup.Remove()) })

	h = shared.startHub(t, nil)
	var newest int32
	for range 3 {
		newest = shared.setNewBudget(t)
		shared.awaitAcknowledged(t, newest)
	}
	before := map[string]v1alpha1.PlanVersion{}
	for _, name := range shared.memberNames {
		before[name] = *shared.GetMember(t, name).Status.Plan
	}
	require.NoError(t, h.Stop(testenv.Patience))
	inBergen, inFakes := startJudge(t, realName, shared.realMember.ControlPlane.Config()), startJudge(t, "fake", shared.FakePlane.Config())
	require.NoError(t, backup.Restore(t.Context()))

	// One member is not reached when the hub begins again.
	shared.fakeLink.Cut()
	t.Cleanup(func() { require.NoError(t, shared.fakeLink.Repair(context.Background())) })
	planOfLinked := &v1alpha1.ClusterPlan{}
	key := client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + linkedFake, Name: v1alpha1.MailboxName}
	require.NoError(t, shared.Get(t.Context(), key, planOfLinked))
	require.Negative(t, planOfLinked.Spec.Compare(before[linkedFake]))

	shared.startHub(t, nil)
	reached := []string{realName, proxiedFake, plainFake, otherFake}
	for _, name := range reached {
		m := shared.AwaitMember(t, name, "its newest policy, held", isHeld(newest))
		assert.Greater(t, m.Status.Plan.Epoch, before[name].Epoch, name)
		c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionPolicyAcknowledged)
		assert.Contains(t, c.Message, "restored from a backup", name)
		assert.Contains(t, c.Message, "is held back until that changes", name)
	}

	// As many changes as were lost: what the hub would plan for the one that it does
	// not reach would bear the version that this one knows, with another policy.
	var budget int32
	for range 3 {
		budget = shared.setNewBudget(t)
		shared.awaitAcknowledged(t, budget, reached...)
	}
	for _, name := range reached {
		assert.Greater(t, shared.GetMember(t, name).Status.AcknowledgedPlan.Epoch, before[name].Epoch, name)
	}
	after := &v1alpha1.ClusterPlan{}
	require.NoError(t, shared.Get(t.Context(), key, after))
	assert.Equal(t, planOfLinked.Spec, after.Spec, "no plan is made by what a member said before the backup")

	require.NoError(t, shared.fakeLink.Repair(t.Context()))
	shared.AwaitMember(t, linkedFake, "its newest policy, held", isHeld(newest))
	shared.awaitAcknowledged(t, shared.setNewBudget(t))
	assert.Greater(t, shared.GetMember(t, linkedFake).Status.AcknowledgedPlan.Epoch, before[linkedFake].Epoch)
	inBergen.requireOnlyRising(t)
	inFakes.requireOnlyRising(t)
}
