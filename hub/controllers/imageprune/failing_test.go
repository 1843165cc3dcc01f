package imageprune

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// The client refuses to ask for such a name: an error that no retry ends.
func TestUnusableReportNameIsAMissingReport(t *testing.T) {
	for _, name := range []string{"../memberclusters", "100%", ".", ".."} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, "a")
			r := &v1alpha1.PruneReport{}
			r.Name, r.Status.Digest = name, "digest"
			c.createPrune("prune", r)
			h := c.startHub("prune")
			stored := h.reconcilePrune("prune")
			assert.Equal(t, v1alpha1.ImagePruneFailed, stored.Status.Phase)
			assert.Equal(t, v1alpha1.ReasonReportMissing, stored.Status.Reason)
			assert.True(t, h.Tracker.Ready())
		})
	}
}

// An ImagePrune that has not started requests nothing, whatever keeps it from starting.
func TestPruneThatCannotStartDoesNotHoldBackOthers(t *testing.T) {
	c := newCluster(t, "a")
	c.createPrune("prune", c.createReport("report", []string{"a"}, "ubuntu"))
	h := c.startHub("prune")
	c.refuseReports = true
	require.ErrorIs(t, h.reconcileErr("prune"), errRefused)
	assert.True(t, h.Tracker.Ready())
	assert.Empty(t, h.requested("a"))

	c.refuseReports, c.roots.synced = false, false
	other := c.startHub("prune")
	require.NoError(t, other.reconcileErr("prune"))
	assert.True(t, other.Tracker.Ready(), "reports that are not read yet matter to one that runs")
}

// IdentityConfirmed says for 20 minutes that a member has two agents, also when no plan reaches either any more.
func TestFailedPruneNamesAClusterWhoseTwoAgentsAreSilent(t *testing.T) {
	for healthy, want := range map[metav1.ConditionStatus]string{metav1.ConditionTrue: "stay", metav1.ConditionFalse: ": a"} {
		t.Run(string(healthy), func(t *testing.T) {
			c := newCluster(t, "a")
			r := c.createReport("report", []string{"a"}, "ubuntu")
			c.createPrune("prune", r)
			h := c.startHub()
			require.Equal(t, v1alpha1.ImagePruneRunning, h.reconcilePrune("prune").Status.Phase)
			m := &v1alpha1.MemberCluster{}
			require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "a"}, m))
			m.Status.Conditions = []metav1.Condition{
				{Type: v1alpha1.ConditionIdentityConfirmed, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonTwoAgents},
				{Type: v1alpha1.ConditionAgentHealthy, Status: healthy, Reason: "Test"},
			}
			require.NoError(t, c.Status().Update(t.Context(), m))
			require.NoError(t, c.Delete(t.Context(), r))
			stored := h.reconcilePrune("prune")
			require.Equal(t, v1alpha1.ImagePruneFailed, stored.Status.Phase)
			assert.True(t, strings.HasSuffix(stored.Status.Message, want), stored.Status.Message)
		})
	}
}

// Argo CD and kubectl wait for the observed generation.
func TestUndoAfterTheEndIsObserved(t *testing.T) {
	c := newCluster(t, "a")
	h := c.startHub()
	c.createPrune("prune", c.createReport("report", []string{"a"}, "ubuntu"))
	stored := h.reconcilePrune("prune")
	h.report("a", stored.UID, map[string]v1alpha1.PruneState{"ubuntu": v1alpha1.PrunePruned})
	stored = h.reconcilePrune("prune")
	require.Equal(t, v1alpha1.ImagePruneComplete, stored.Status.Phase)

	stored.Spec.Undo = true
	stored.Generation++
	require.NoError(t, c.Update(t.Context(), stored))
	after := h.reconcilePrune("prune")
	assert.Equal(t, v1alpha1.ImagePruneComplete, after.Status.Phase)
	assert.Equal(t, stored.Generation, after.Status.ObservedGeneration)
	assert.Equal(t, stored.Status.Message, after.Status.Message)
	require.NotEmpty(t, after.Status.Conditions)
	for _, condition := range after.Status.Conditions {
		assert.Equal(t, stored.Generation, condition.ObservedGeneration, condition.Type)
	}
	assert.Equal(t, after.ResourceVersion, h.reconcilePrune("prune").ResourceVersion)
	said := 0
	for recorded := h.Events.(*events.FakeRecorder).Events; len(recorded) > 0; {
		if strings.Contains(<-recorded, "UndoTooLate") {
			said++
		}
	}
	assert.Equal(t, 1, said)
	assert.Empty(t, h.requested("a"))
}
