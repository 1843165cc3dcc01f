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
)

// held tells that a member keeps a policy that the restored hub does not know.
func held(budget int32) func(*v1alpha1.MemberCluster) bool {
	return func(m *v1alpha1.MemberCluster) bool {
		c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionPolicyAcknowledged)
		return c != nil && c.Reason == v1alpha1.ReasonPolicyHeld && m.Status.Budget != nil && *m.Status.Budget == budget &&
			m.Status.AcknowledgedPlan != nil && m.Status.Plan != nil && m.Status.AcknowledgedPlan.Compare(*m.Status.Plan) == 0
	}
}

// It and the other one that restores a hub are the last ones of the package, by the
// names of their files: what plays CDI in the hub's cluster does not watch on after a
// restore.
func TestHubRestoredFromABackup(t *testing.T) {
	h := shared.startHub(t, nil)
	shared.acknowledged(t, shared.change(t))
	require.NoError(t, h.Stop(patience))
	backup, err := shared.home.ControlPlane.Backup(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, backup.Remove()) })

	h = shared.startHub(t, nil)
	var newest int32
	for range 3 {
		newest = shared.change(t)
		shared.acknowledged(t, newest)
	}
	before := map[string]v1alpha1.PlanVersion{}
	for _, name := range shared.names {
		before[name] = *shared.member(t, name).Status.Plan
	}
	require.NoError(t, h.Stop(patience))
	inBergen, inLights := judges(t, real1, shared.bergen.ControlPlane.Config()), judges(t, "light", shared.plane.Config())
	require.NoError(t, backup.Restore(t.Context()))

	// One member is not reached when the hub begins again.
	shared.link.Cut()
	t.Cleanup(func() { require.NoError(t, shared.link.Mend(context.Background())) })
	planOfLinked := &v1alpha1.ClusterPlan{}
	key := client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + linked, Name: v1alpha1.MailboxName}
	require.NoError(t, shared.Get(t.Context(), key, planOfLinked))
	require.Negative(t, planOfLinked.Spec.Compare(before[linked]))

	shared.startHub(t, nil)
	reached := []string{real1, proxied, plain, another}
	for _, name := range reached {
		m := shared.eventually(t, name, "its newest policy, held", held(newest))
		assert.Greater(t, m.Status.Plan.Epoch, before[name].Epoch, name)
		c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionPolicyAcknowledged)
		assert.Contains(t, c.Message, "restored from a backup", name)
		assert.Contains(t, c.Message, "until it asks for something else", name)
	}

	// As many changes as were lost: what the hub would plan for the one that it does
	// not reach would bear the version that this one knows, with another policy.
	var budget int32
	for range 3 {
		budget = shared.change(t)
		shared.acknowledged(t, budget, reached...)
	}
	for _, name := range reached {
		assert.Greater(t, shared.member(t, name).Status.AcknowledgedPlan.Epoch, before[name].Epoch, name)
	}
	after := &v1alpha1.ClusterPlan{}
	require.NoError(t, shared.Get(t.Context(), key, after))
	assert.Equal(t, planOfLinked.Spec, after.Spec, "no plan is made by what a member said before the backup")

	require.NoError(t, shared.link.Mend(t.Context()))
	shared.eventually(t, linked, "its newest policy, held", held(newest))
	shared.acknowledged(t, shared.change(t))
	assert.Greater(t, shared.member(t, linked).Status.AcknowledgedPlan.Epoch, before[linked].Epoch)
	inBergen.onlyRose(t)
	inLights.onlyRose(t)
}
