//go:build linux

package prune_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
)

// A hub that starts and cannot read yet what is to be pruned takes nothing of that out
// of the plans, which would undo it; all else it plans.
func TestPruneBeforeHubHasNewReport(t *testing.T) {
	in := shared.Members[bergen]
	in.createLeftoverImages(t, "known-a")
	r := shared.createCompleteReport(t, "known-", bergen)
	p := shared.createPendingPrune(t, "known", r, time.Hour)
	shared.Hub.Kill()
	<-shared.Hub.Done()
	t.Cleanup(func() {
		if shared.Hub.HasEnded() {
			require.NoError(t, shared.StartHub(context.Background()))
		}
	})
	shared.Proxy.Forbid("prunereportpages")
	t.Cleanup(func() { shared.Proxy.Forbid() })
	require.NoError(t, shared.StartHub(t.Context()))

	shared.rollOut(t, newFleetImage("known-beside", bergen)) // planned and reported since
	plan := &v1alpha1.ClusterPlan{}
	require.NoError(t, shared.Get(t.Context(), fleet.MailboxKey(bergen), plan))
	require.Len(t, plan.Spec.Prunes, 1)
	assert.Equal(t, p.UID, plan.Spec.Prunes[0].UID)
	still := in.AwaitPhase(t, "known-a", v1alpha1.PhasePrunePending)
	assert.Equal(t, p.UID, still.Status.Prune.UID)

	shared.Proxy.Forbid()
	shared.undoPrune(t, p)
	shared.awaitPruneEnd(t, p, v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 1, Undone: 1})
	in.requireServing(t, "known-a")
}
