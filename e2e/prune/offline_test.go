//go:build linux

package prune_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// A member that goes dark while prunes run is waited for, until the deadline, and
// carries out by itself what it had taken up. One that is not heard of is unknown to a
// report.
func TestMemberIsDark(t *testing.T) {
	t.Parallel()
	in, other := shared.sites[island], shared.sites[edge]
	in.left(t, "dark-during", "dark-alone", "dark-late")
	other.left(t, "dark-during", "dark-stays")
	elsewhere := other.image(t, "dark-during")
	during, alone := in.image(t, "dark-during"), in.image(t, "dark-alone")
	r := shared.report(t, "dark-", island, edge)
	require.Equal(t, int32(5), r.Status.Candidates.Count)
	some := func(name, image string) *v1alpha1.ImagePrune {
		p := imagePrune(name, r)
		p.Spec.Images = []string{namespace + "/" + image}
		return p
	}

	takenUp := within(some("dark-alone", "dark-alone"), 15*time.Second)
	shared.apply(t, takenUp)
	shared.awaits(t, takenUp, "taken up", func(p *v1alpha1.ImagePrune) bool { return p.Status.Targets.Pending == 1 })
	in.link.Cut()
	t.Cleanup(func() { require.NoError(t, in.link.Mend(context.Background())) })
	in.loses(t, alone)

	waits := some("dark-during", "dark-during")
	shared.apply(t, waits)
	got := shared.awaits(t, waits, "waits for island", func(p *v1alpha1.ImagePrune) bool {
		return p.Status.Targets == v1alpha1.TargetCounts{Total: 2, Pruned: 1, Waiting: 1}
	})
	assert.Equal(t, v1alpha1.ImagePruneRunning, got.Status.Phase)
	assert.Equal(t, v1alpha1.ReasonAwaitingMembers, got.Status.Reason)
	other.loses(t, elsewhere)

	// After the deadline nothing is asked of it any more.
	late := some("dark-late", "dark-late")
	late.Spec.Deadline = &metav1.Duration{Duration: time.Second}
	shared.apply(t, late)
	tooLate := func() {
		t.Helper()
		ended := shared.ends(t, late, v1alpha1.ImagePruneComplete, v1alpha1.ReasonPartlyPruned, v1alpha1.TargetCounts{Total: 1, Unknown: 1})
		assert.Equal(t, map[string]string{island + "/dark-late": "Unknown " + v1alpha1.PruneDeadline}, skipped(ended))
	}
	tooLate()

	// A report waits for it as long as it could still answer.
	unknown := pruneReport("dark-unknown", "dark-", island, edge)
	unknown.Spec.AnswerDeadline = &metav1.Duration{Duration: time.Hour}
	shared.ask(t, unknown)
	unknown = shared.complete(t, unknown)
	silent := scene.Member(t, shared, island)
	assert.True(t, meta.IsStatusConditionFalse(silent.Status.Conditions, v1alpha1.ConditionAgentHealthy), "%s", scene.Describe(silent))
	assert.Equal(t, v1alpha1.AnswerCounts{Total: 2, Answered: 1, Unknown: 1}, unknown.Status.Clusters)
	require.Len(t, unknown.Status.UnknownClusters, 1)
	assert.Equal(t, island, unknown.Status.UnknownClusters[0].Cluster)
	said := shared.said(t, unknown)
	require.Contains(t, said, island)
	assert.NotEmpty(t, said[island].Unknown)
	assert.Empty(t, said[island].Candidates)
	assert.Empty(t, said[island].Kept)
	assert.Equal(t, []string{"dark-stays"}, candidates(said[edge]))
	assert.Equal(t, int32(1), unknown.Status.Candidates.Count)

	shared.back(t, in)
	shared.pruned(t, takenUp, 1)
	shared.pruned(t, waits, 2)
	in.loses(t, during)
	tooLate()
	in.serves(t, "dark-late")
	assert.Nil(t, in.image(t, "dark-late").Status.Prune, "it was never asked for")

	// One that is asked while it cannot be reached answers when it is back.
	in.link.Cut()
	r = pruneReport("dark-asked", "dark-", island)
	r.Spec.AnswerDeadline = &metav1.Duration{Duration: time.Hour}
	shared.ask(t, r)
	require.True(t, scene.Await(t, func() bool {
		plan := &v1alpha1.ClusterPlan{}
		require.NoError(t, shared.Get(t.Context(), mailbox(island), plan))
		return len(plan.Spec.Inquiries) > 0
	}), "island is not asked")
	shared.back(t, in)
	assert.Equal(t, []string{"dark-late"}, candidates(shared.said(t, shared.complete(t, r))[island]))
}
