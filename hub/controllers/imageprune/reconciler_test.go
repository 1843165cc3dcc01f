package imageprune

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestPruneRunsUntilAllTargetsAreReported(t *testing.T) {
	c := newCluster(t, "a")
	h := c.startHub()
	c.createPrune("prune", c.createReport("report", []string{"a"}, "ubuntu", "debian"))
	stored := h.reconcilePrune("prune")
	assert.Equal(t, v1alpha1.ImagePruneRunning, stored.Status.Phase)
	assert.Equal(t, v1alpha1.TargetCounts{Total: 2, Waiting: 2}, stored.Status.Targets)
	assert.Equal(t, []types.UID{"debian-image", "ubuntu-image"}, h.requested("a"))

	h.report("a", stored.UID, map[string]v1alpha1.PruneState{"ubuntu": v1alpha1.PrunePruned, "debian": v1alpha1.PruneSkipped})
	states, found, err := h.TargetStates(t.Context(), "prune")
	require.NoError(t, err)
	assert.True(t, found)
	require.Len(t, states, 2)
	assert.Equal(t, v1alpha1.PruneSkipped, states[0].State)
	assert.Equal(t, v1alpha1.PrunePruned, states[1].State)

	stored = h.reconcilePrune("prune")
	assert.Equal(t, v1alpha1.ImagePruneComplete, stored.Status.Phase)
	assert.Equal(t, v1alpha1.TargetCounts{Total: 2, Pruned: 1, Skipped: 1}, stored.Status.Targets)
	assert.Empty(t, h.requested("a"))

	other := c.startHub()
	states, found, err = other.TargetStates(t.Context(), "prune")
	require.NoError(t, err)
	assert.True(t, found)
	assert.Len(t, states, 2, "also in a replica that has not reconciled it")
	_, found, err = other.TargetStates(t.Context(), "unknown")
	require.NoError(t, err)
	assert.False(t, found)
}

func TestNothingIsPlannedBeforeRunningIsStored(t *testing.T) {
	c := newCluster(t, "a")
	h := c.startHub()
	c.createPrune("prune", c.createReport("report", []string{"a"}, "ubuntu"))
	c.refuseStatus = true
	require.ErrorIs(t, h.reconcileErr("prune"), errRefused)
	assert.Empty(t, h.requested("a"))

	c.refuseStatus = false
	stored := h.reconcilePrune("prune")
	assert.Equal(t, []types.UID{"ubuntu-image"}, h.requested("a"))
	c.refuseStatus = true
	h.report("a", stored.UID, map[string]v1alpha1.PruneState{"ubuntu": v1alpha1.PrunePruned})
	require.ErrorIs(t, h.reconcileErr("prune"), errRefused)
	assert.Equal(t, []types.UID{"ubuntu-image"}, h.requested("a"), "the request stays until the end is stored")
}

func TestRestartedHubIsReadyOnceTargetsAreLoaded(t *testing.T) {
	c := newCluster(t, "a")
	c.createPrune("prune", c.createReport("report", []string{"a"}, "ubuntu"))
	c.startHub().reconcilePrune("prune")

	restarted := c.startHub("prune")
	assert.False(t, restarted.Tracker.Ready())
	c.refusePages = true
	require.ErrorIs(t, restarted.reconcileErr("prune"), errRefused)
	assert.False(t, restarted.Tracker.Ready(), "the targets could not be read")
	c.refusePages, c.roots.synced = false, false
	restarted.reconcilePrune("prune")
	assert.False(t, restarted.Tracker.Ready(), "the reporting clusters are not known")
	c.roots.synced = true
	restarted.reconcilePrune("prune")
	assert.True(t, restarted.Tracker.Ready())
	assert.Equal(t, []types.UID{"ubuntu-image"}, restarted.requested("a"))
}

// Otherwise agents that did nothing before the deadline would start after it.
func TestPruneEndedDuringOutageIsNotPlannedAgain(t *testing.T) {
	c := newCluster(t, "a")
	c.createPrune("prune", c.createReport("report", []string{"a"}, "ubuntu"))
	stored := c.startHub().reconcilePrune("prune")
	past := metav1.NewTime(time.Now().Add(-3 * time.Hour))
	stored.Status.StartedAt = &past
	require.NoError(t, c.Status().Update(t.Context(), stored))

	c.refuseStatus = true
	restarted := c.startHub("prune")
	var replanned []string
	restarted.Tracker.OnRequestsChange(func(member string) { replanned = append(replanned, member) })
	require.ErrorIs(t, restarted.reconcileErr("prune"), errRefused)
	assert.Empty(t, replanned)
	assert.Empty(t, restarted.Tracker.ActivePrunes())
	assert.False(t, restarted.Tracker.Ready(), "plans keep their requests until the end is stored")

	c.refuseStatus = false
	stored = restarted.reconcilePrune("prune")
	assert.Equal(t, v1alpha1.ImagePruneComplete, stored.Status.Phase)
	assert.Equal(t, v1alpha1.TargetCounts{Total: 1, Unknown: 1}, stored.Status.Targets)
	assert.True(t, restarted.Tracker.Ready())
	assert.Empty(t, restarted.requested("a"))
}

func TestPruneRequiresReviewedPages(t *testing.T) {
	for name, tt := range map[string]struct {
		change      func(t *testing.T, c *cluster, of *v1alpha1.PruneReport)
		want        string
		wantMessage string
	}{
		"unchanged": {func(*testing.T, *cluster, *v1alpha1.PruneReport) {}, v1alpha1.ReasonAwaitingMembers, "wait"},
		"image added": {func(t *testing.T, c *cluster, of *v1alpha1.PruneReport) {
			page := c.getPage(of)
			page.Clusters[0].Candidates = append(page.Clusters[0].Candidates, v1alpha1.PruneCandidate{Namespace: "farm", Name: "windows", UID: "windows-image"})
			require.NoError(t, c.Update(t.Context(), page))
		}, v1alpha1.ReasonReportChanged, "have digest"},
		"page gone": {func(t *testing.T, c *cluster, of *v1alpha1.PruneReport) {
			require.NoError(t, c.Delete(t.Context(), c.getPage(of)))
		}, v1alpha1.ReasonReportChanged, "is missing"},
		"page hidden": {func(t *testing.T, c *cluster, of *v1alpha1.PruneReport) {
			of.Status.Pages = 0
			require.NoError(t, c.Status().Update(t.Context(), of))
		}, v1alpha1.ReasonReportChanged, "have digest"},
		"report gone": {func(t *testing.T, c *cluster, of *v1alpha1.PruneReport) {
			require.NoError(t, c.Delete(t.Context(), of))
		}, v1alpha1.ReasonReportMissing, "there is no PruneReport"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, "a")
			h := c.startHub()
			r := c.createReport("report", []string{"a"}, "ubuntu")
			c.createPrune("prune", r)
			tt.change(t, c, r)
			stored := h.reconcilePrune("prune")
			assert.Equal(t, tt.want, stored.Status.Reason, stored.Status.Message)
			assert.Contains(t, stored.Status.Message, tt.wantMessage)
			if tt.want == v1alpha1.ReasonAwaitingMembers {
				assert.Equal(t, []types.UID{"ubuntu-image"}, h.requested("a"))
				require.NoError(t, c.Delete(t.Context(), r))
				assert.Equal(t, v1alpha1.ReasonReportMissing, h.reconcilePrune("prune").Status.Reason, "also while it runs")
			}
			assert.Empty(t, h.requested("a"))
		})
	}
}

func TestReplacedClusterIsAskedNothing(t *testing.T) {
	c := newCluster(t, "a")
	h := c.startHub()
	c.createPrune("prune", c.createReport("report", []string{"a"}, "ubuntu", "debian"))
	stored := h.reconcilePrune("prune")
	require.Len(t, h.requested("a"), 2)

	// What another cluster reports is ignored.
	h.report("a", stored.UID, map[string]v1alpha1.PruneState{"ubuntu": v1alpha1.PrunePruned})
	c.roots.clusterUIDs["a"] = "another-cluster"
	v, err := h.gatherView(t.Context(), stored)
	require.NoError(t, err)
	_, found := v.Reported(h.cachedTargets(stored).list[1])
	assert.False(t, found)
	assert.Len(t, h.requested("a"), 2, "the MemberCluster is still the cluster of the report")

	c.setCluster("a", "another-cluster")
	stored = h.reconcilePrune("prune")
	assert.Empty(t, h.requested("a"))
	assert.Equal(t, v1alpha1.ImagePruneComplete, stored.Status.Phase)
	assert.Equal(t, v1alpha1.TargetCounts{Total: 2, Unknown: 2}, stored.Status.Targets)
}

func TestOnlyUnchangedClusterIsAsked(t *testing.T) {
	c := newCluster(t, "stays", "replaced")
	h := c.startHub()
	c.createPrune("prune", c.createReport("report", []string{"stays", "replaced"}, "ubuntu"))
	h.reconcilePrune("prune")
	require.Len(t, h.requested("stays"), 1)
	require.Len(t, h.requested("replaced"), 1)

	c.setCluster("replaced", "another-cluster")
	stored := h.reconcilePrune("prune")
	assert.Equal(t, v1alpha1.TargetCounts{Total: 2, Waiting: 1, Unknown: 1}, stored.Status.Targets)
	assert.Len(t, h.requested("stays"), 1)
	assert.Empty(t, h.requested("replaced"))
	assert.Equal(t, []string{"prune"}, h.Tracker.ActivePrunesIn("replaced"), "it may come back")

	c.setCluster("replaced", "replaced-cluster")
	h.reconcilePrune("prune")
	assert.Len(t, h.requested("replaced"), 1)
}

func TestDeletedPruneIsWithdrawn(t *testing.T) {
	c := newCluster(t, "a")
	h := c.startHub()
	c.createPrune("prune", c.createReport("report", []string{"a"}, "ubuntu"))
	stored := h.reconcilePrune("prune")
	assert.Len(t, h.requested("a"), 1)

	stored.Spec.Undo = true
	stored.Generation++
	require.NoError(t, c.Update(t.Context(), stored))
	h.reconcilePrune("prune")
	_, prunes, _ := h.Tracker.ForMember("a")
	require.Len(t, prunes, 1)
	assert.True(t, prunes[0].Undo)

	require.NoError(t, c.Delete(t.Context(), stored))
	require.NoError(t, h.reconcileErr("prune"))
	assert.Empty(t, h.requested("a"))
	assert.Empty(t, h.targetsByPrune)
}

// What was requested for a prune that was deleted ends although another one has its name.
func TestPruneMadeAgainRequestsNothingBeforeItRuns(t *testing.T) {
	c := newCluster(t, "a")
	h := c.startHub()
	c.createPrune("prune", c.createReport("report", []string{"a"}, "ubuntu"))
	stored := h.reconcilePrune("prune")
	assert.Len(t, h.requested("a"), 1)

	require.NoError(t, c.Delete(t.Context(), stored))
	unfinished := &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: "unfinished"}}
	require.NoError(t, c.Create(t.Context(), unfinished))
	c.createPrune("prune", unfinished)
	require.NotEqual(t, v1alpha1.ImagePruneRunning, h.reconcilePrune("prune").Status.Phase)
	assert.Empty(t, h.requested("a"))
}

// Stored start times differ, so that every hub that comes to lead orders two ImagePrunes
// alike.
func TestPrunesStartInDifferentSeconds(t *testing.T) {
	c := newCluster(t, "a")
	h := c.startHub()
	r := c.createReport("report", []string{"a"}, "ubuntu")
	c.createPrune("prune-b", r)
	c.createPrune("prune-a", r)
	assert.Equal(t, v1alpha1.ImagePruneRunning, h.reconcilePrune("prune-b").Status.Phase)
	require.Eventually(t, func() bool {
		return h.reconcilePrune("prune-a").Status.Phase == v1alpha1.ImagePruneRunning
	}, time.Minute, 20*time.Millisecond, "the other starts")
	first, second := c.getPrune("prune-b"), c.getPrune("prune-a")
	assert.True(t, first.Status.StartedAt.Before(second.Status.StartedAt))
	assert.Equal(t, v1alpha1.PruneAnotherPrune, h.Tracker.HeldReason(second.UID, "a", types.NamespacedName{Namespace: "farm", Name: "ubuntu"}, "ubuntu-image"))

	restarted := c.startHub("prune-a", "prune-b")
	restarted.reconcilePrune("prune-a")
	restarted.reconcilePrune("prune-b")
	_, prunes, known := restarted.Tracker.ForMember("a")
	require.True(t, known)
	require.Len(t, prunes, 1)
	assert.Equal(t, first.UID, prunes[0].UID)
}
