//go:build linux

package prune_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A hub that starts and cannot read yet what is to be pruned takes nothing of that out
// of the plans, which would undo it; all else it plans.
func TestHubDoesNotKnowYetWhatIsPruned(t *testing.T) {
	in := shared.sites[bergen]
	in.left(t, "known-a")
	r := shared.report(t, "known-", bergen)
	p := shared.pending(t, "known", r, time.Hour)
	shared.hub.Kill()
	<-shared.hub.Done()
	t.Cleanup(func() {
		if ended(shared.hub.Process) {
			require.NoError(t, shared.startHub(context.Background()))
		}
	})
	shared.proxy.Refuse("prunereportpages")
	t.Cleanup(func() { shared.proxy.Refuse() })
	require.NoError(t, shared.startHub(t.Context()))

	shared.rollOut(t, fleetImage("known-beside", bergen)) // planned and reported since
	plan := &v1alpha1.ClusterPlan{}
	require.NoError(t, shared.Get(t.Context(), mailbox(bergen), plan))
	require.Len(t, plan.Spec.Prunes, 1)
	assert.Equal(t, p.UID, plan.Spec.Prunes[0].UID)
	still := in.has(t, "known-a", v1alpha1.PhasePrunePending)
	assert.Equal(t, p.UID, still.Status.Prune.UID)

	shared.proxy.Refuse()
	shared.undo(t, p)
	shared.ends(t, p, v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 1, Undone: 1})
	in.serves(t, "known-a")
}
