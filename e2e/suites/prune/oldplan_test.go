//go:build linux

package prune_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// A plan that lies in the mailbox while no hub runs names a prune that has ended since: an agent that
// starts does not begin it, but asks. The hub that comes back withdraws it, and what is requested goes on.
func TestEndedPruneDoesNotBeginByOldPlan(t *testing.T) {
	in := shared.Members[island]
	in.createLeftoverImages(t, "oldplan-stays", "oldplan-goes")
	stays, goes := in.GetImage(t, "oldplan-stays"), in.GetImage(t, "oldplan-goes")
	r := shared.createCompleteReport(t, "oldplan-", island)
	p, q := newImagePrune("oldplan-ended", r), newImagePrune("oldplan-runs", r)
	p.Spec.Images, q.Spec.Images = []string{namespace + "/oldplan-stays"}, []string{namespace + "/oldplan-goes"}

	in.Agent.Kill()
	<-in.Agent.Done()
	t.Cleanup(func() {
		if in.Agent.HasEnded() {
			require.NoError(t, in.StartAgent(context.Background()))
		}
		if shared.Hub.HasEnded() {
			require.NoError(t, shared.StartHub(context.Background()))
		}
	})
	shared.CreateForTest(t, p)
	awaitPlan := func(c client.Reader, key client.ObjectKey, wanted string, prunes ...types.UID) {
		t.Helper()
		plan := &v1alpha1.ClusterPlan{}
		require.True(t, testenv.AwaitCondition(t, func() bool {
			require.NoError(t, c.Get(t.Context(), key, plan))
			return slices.EqualFunc(plan.Spec.Prunes, prunes, func(planned v1alpha1.PlannedPrune, uid types.UID) bool { return planned.UID == uid })
		}), "plan %s: %s: %+v", key, wanted, &plan.Spec)
	}
	awaitPlan(shared, fleet.MailboxKey(island), "names the prune", p.UID)
	mailbox := client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.MailboxName}
	if !in.PullMode() { // otherwise the agent copies it
		awaitPlan(in.WithWatch, mailbox, "names the prune", p.UID)
	}
	readNonce := func() string {
		t.Helper()
		report := &v1alpha1.ClusterReport{}
		require.NoError(t, in.Get(t.Context(), mailbox, report))
		return ptr.Deref(report.Root, v1alpha1.ReportRoot{}).PruneNonce // absent before the agent's first report
	}
	former := readNonce() // an agent that an earlier test killed may have asked
	shared.Hub.Kill()
	<-shared.Hub.Done()
	require.NoError(t, shared.Delete(t.Context(), p))

	require.NoError(t, in.StartAgent(t.Context()))
	awaitPlan(in.WithWatch, mailbox, "names the prune", p.UID)
	require.True(t, testenv.AwaitCondition(t, func() bool {
		nonce := readNonce()
		return nonce != "" && nonce != former
	}), "the agent does not ask")
	assert.Nil(t, in.requireServing(t, "oldplan-stays").Status.Prune)

	require.NoError(t, shared.StartHub(t.Context()))
	awaitPlan(shared, fleet.MailboxKey(island), "names no prune")
	awaitPlan(in.WithWatch, mailbox, "names no prune")
	shared.CreateForTest(t, q)
	shared.awaitPruned(t, q, 1)
	in.awaitImageGone(t, goes)
	left := in.requireServing(t, "oldplan-stays")
	assert.Equal(t, stays.UID, left.UID)
	assert.Nil(t, left.Status.Prune, "it never began")
}
