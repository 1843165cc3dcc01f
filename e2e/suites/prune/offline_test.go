//go:build linux

package prune_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// A member that goes dark while prunes run is waited for, until the deadline, and
// carries out by itself what it had taken up. One that is not heard of is unknown to a
// report.
func TestDarkMemberIsNotPruned(t *testing.T) {
	testenv.RunInTurn(t, 0)
	t.Parallel()
	in, other := shared.Members[island], shared.Members[edge]
	in.createLeftoverImages(t, "dark-during", "dark-alone", "dark-late")
	other.createLeftoverImages(t, "dark-during", "dark-stays")
	elsewhere := other.GetImage(t, "dark-during")
	during, alone := in.GetImage(t, "dark-during"), in.GetImage(t, "dark-alone")
	r := shared.createCompleteReport(t, "dark-", island, edge)
	require.Equal(t, int32(5), r.Status.Candidates.Count)
	some := func(name, image string) *v1alpha1.ImagePrune {
		p := newImagePrune(name, r)
		p.Spec.Images = []string{namespace + "/" + image}
		return p
	}

	takenUp := withUndoWindow(some("dark-alone", "dark-alone"), time.Hour)
	shared.CreateForTest(t, takenUp)
	shared.awaitPrune(t, takenUp, "taken up", func(p *v1alpha1.ImagePrune) bool { return p.Status.Targets.Pending == 1 })
	in.Link.Cut()
	t.Cleanup(func() { require.NoError(t, in.Link.Repair(context.Background())) })
	in.closeUndoWindow(t, "dark-alone")
	in.awaitImageGone(t, alone)

	waits := some("dark-during", "dark-during")
	shared.CreateForTest(t, waits)
	got := shared.awaitPrune(t, waits, "waits for island", func(p *v1alpha1.ImagePrune) bool {
		return p.Status.Targets == v1alpha1.TargetCounts{Total: 2, Pruned: 1, Waiting: 1}
	})
	assert.Equal(t, v1alpha1.ImagePruneRunning, got.Status.Phase)
	assert.Equal(t, v1alpha1.ReasonAwaitingMembers, got.Status.Reason)
	other.awaitImageGone(t, elsewhere)

	// After the deadline nothing is asked of it any more.
	late := some("dark-late", "dark-late")
	late.Spec.Deadline = &metav1.Duration{Duration: time.Second}
	shared.CreateForTest(t, late)
	tooLate := func() {
		t.Helper()
		ended := shared.awaitPruneEnd(t, late, v1alpha1.ImagePruneComplete, v1alpha1.ReasonPartlyPruned, v1alpha1.TargetCounts{Total: 1, Unknown: 1})
		assert.Equal(t, map[string]string{island + "/dark-late": "Unknown " + v1alpha1.PruneDeadline}, skippedReasons(ended))
	}
	tooLate()

	// A report waits for it as long as it could still answer.
	unknown := newPruneReport("dark-unknown", "dark-", island, edge)
	unknown.Spec.AnswerDeadline = &metav1.Duration{Duration: time.Hour}
	shared.CreateForTest(t, unknown)
	unknown = shared.awaitReportComplete(t, unknown)
	silent := testenv.GetMember(t, shared, island)
	assert.True(t, meta.IsStatusConditionFalse(silent.Status.Conditions, v1alpha1.ConditionAgentHealthy), "%s", testenv.DescribeMember(silent))
	assert.Equal(t, v1alpha1.AnswerCounts{Total: 2, Answered: 1, Unknown: 1}, unknown.Status.Clusters)
	require.Len(t, unknown.Status.UnknownClusters, 1)
	assert.Equal(t, island, unknown.Status.UnknownClusters[0].Cluster)
	clusters := shared.clustersInReport(t, unknown)
	require.Contains(t, clusters, island)
	assert.NotEmpty(t, clusters[island].Unknown)
	assert.Empty(t, clusters[island].Candidates)
	assert.Empty(t, clusters[island].Kept)
	assert.Equal(t, []string{"dark-stays"}, candidateNames(clusters[edge]))
	assert.Equal(t, int32(1), unknown.Status.Candidates.Count)

	shared.reconnect(t, in)
	shared.awaitPruned(t, takenUp, 1)
	shared.awaitPruned(t, waits, 2)
	in.awaitImageGone(t, during)
	tooLate()
	in.requireServing(t, "dark-late")
	assert.Nil(t, in.GetImage(t, "dark-late").Status.Prune, "it was never asked for")

	// One that is asked while it cannot be reached answers when it is back.
	in.Link.Cut()
	r = newPruneReport("dark-asked", "dark-", island)
	r.Spec.AnswerDeadline = &metav1.Duration{Duration: time.Hour}
	shared.CreateForTest(t, r)
	require.True(t, testenv.AwaitCondition(t, func() bool {
		plan := &v1alpha1.ClusterPlan{}
		require.NoError(t, shared.Get(t.Context(), fleet.MailboxKey(island), plan))
		return slices.ContainsFunc(plan.Spec.Inquiries, func(asked v1alpha1.PlanInquiry) bool { return asked.UID == r.UID })
	}), "island is not asked")
	shared.reconnect(t, in)
	assert.Equal(t, []string{"dark-late"}, candidateNames(shared.clustersInReport(t, shared.awaitReportComplete(t, r))[island]))
}
