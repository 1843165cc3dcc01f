//go:build linux

package prune_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// A member that is not heard of is unknown to a report; one that goes dark while a
// prune runs is waited for, until the deadline, and carries out by itself what it had
// taken up.
func TestMemberIsDark(t *testing.T) {
	t.Parallel()
	in, other := shared.sites[island], shared.sites[edge]
	in.left(t, "dark-during", "dark-alone", "dark-late")
	other.left(t, "dark-during")
	elsewhere := other.image(t, "dark-during")
	during, alone := in.image(t, "dark-during"), in.image(t, "dark-alone")

	// Before: it is not waited for.
	shared.dark(t, in)
	r := pruneReport("dark-before", "dark-", island, edge)
	r.Spec.AnswerDeadline = &metav1.Duration{Duration: time.Hour}
	shared.ask(t, r)
	r = shared.complete(t, r)
	assert.Equal(t, v1alpha1.AnswerCounts{Total: 2, Answered: 1, Unknown: 1}, r.Status.Clusters)
	require.Len(t, r.Status.UnknownClusters, 1)
	assert.Equal(t, island, r.Status.UnknownClusters[0].Cluster)
	said := shared.said(t, r)
	require.Contains(t, said, island)
	assert.NotEmpty(t, said[island].Unknown)
	assert.Empty(t, said[island].Candidates)
	assert.Empty(t, said[island].Kept)
	assert.Equal(t, []string{"dark-during"}, candidates(said[edge]))
	shared.back(t, in)
	r = shared.report(t, "dark-", island, edge)
	require.Equal(t, int32(4), r.Status.Candidates.Count)

	// During: what it has taken up it carries out alone, and what it has not waits.
	takenUp := imagePrune("dark-alone", r)
	takenUp.Spec.Images = []string{namespace + "/dark-alone"}
	shared.apply(t, within(takenUp, 3*time.Second))
	shared.awaits(t, takenUp, "taken up", func(p *v1alpha1.ImagePrune) bool { return p.Status.Targets.Pending == 1 })
	shared.dark(t, in)
	in.loses(t, alone)
	waits := imagePrune("dark-during", r)
	waits.Spec.Images = []string{namespace + "/dark-during"}
	shared.apply(t, waits)
	got := shared.awaits(t, waits, "waits for island", func(p *v1alpha1.ImagePrune) bool {
		return p.Status.Targets == v1alpha1.TargetCounts{Total: 2, Pruned: 1, Waiting: 1}
	})
	assert.Equal(t, v1alpha1.ImagePruneRunning, got.Status.Phase)
	assert.Equal(t, v1alpha1.ReasonAwaitingMembers, got.Status.Reason)
	other.loses(t, elsewhere)
	in.serves(t, "dark-during")

	// After the deadline nothing is asked of it any more.
	late := imagePrune("dark-late", r)
	late.Spec.Images = []string{namespace + "/dark-late"}
	late.Spec.Deadline = metav1.Duration{Duration: time.Second}
	shared.apply(t, late)
	ended := shared.ends(t, late, v1alpha1.ImagePruneComplete, v1alpha1.ReasonPartlyPruned, v1alpha1.TargetCounts{Total: 1, Unknown: 1})
	assert.Equal(t, map[string]string{island + "/dark-late": "Unknown " + v1alpha1.PruneDeadline}, skipped(ended))

	shared.back(t, in)
	shared.pruned(t, takenUp, 1)
	shared.pruned(t, waits, 2)
	in.loses(t, during)
	in.serves(t, "dark-late")
	assert.Empty(t, in.image(t, "dark-late").Status.EndedPrunes, "it was never asked for")
	shared.ends(t, late, v1alpha1.ImagePruneComplete, v1alpha1.ReasonPartlyPruned, v1alpha1.TargetCounts{Total: 1, Unknown: 1})

	// A report is collected from a member that comes back meanwhile.
	in.link.Cut()
	t.Cleanup(func() { require.NoError(t, in.link.Mend(context.Background())) })
	r = pruneReport("dark-asked", "dark-", island)
	r.Spec.AnswerDeadline = &metav1.Duration{Duration: time.Hour}
	shared.ask(t, r)
	require.True(t, scene.Await(t, func() bool {
		plan := &v1alpha1.ClusterPlan{}
		require.NoError(t, shared.Get(t.Context(), mailbox(island), plan))
		return len(plan.Spec.Inquiries) > 0
	}), "island is not asked")
	shared.back(t, in)
	shared.complete(t, r)
}
