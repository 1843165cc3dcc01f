//go:build linux

package rollout_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// Of two FleetDiskImages that make images of one name the older one wins; the
// other says which, begins with nobody, and takes its turn when that one is gone.
func TestTwoFleetDiskImagesWithOneImageName(t *testing.T) {
	testenv.RunInTurn(t, 4)
	t.Parallel()
	older, younger := shared.newFleetImage("one-name-a", bergen, edge), shared.newFleetImage("one-name-b", edge, frankfurt)
	older.Spec.ImageName, younger.Spec.ImageName = "one-name", "one-name"
	name := older.ImageNameForVersion("1")
	shared.createFleetImage(t, older)
	shared.awaitFleetImage(t, older, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}))
	shared.createFleetImage(t, younger)
	stalled := shared.awaitFleetImage(t, younger, "in conflict", hasReason(v1alpha1.RolloutWaiting, v1alpha1.ReasonNameConflict), hasMessage(older.Name))
	requireAllConditions(t, stalled)
	assert.True(t, isConditionTrue(stalled, v1alpha1.ConditionStalled))
	shared.awaitFreshPlans(t, "one-name-beside", bergen, edge, frankfurt)
	assert.Nil(t, shared.Members[frankfurt].GetImage(t, name))
	assert.ElementsMatch(t, []string{bergen, edge}, shared.journal.imageCourse(t, name).begun)
	assert.Equal(t, older.Spec.Template.URL, shared.Members[edge].GetImage(t, name).Spec.URL)
	assert.Equal(t, 1, shared.Members[edge].countDownloads(t, name))
	shared.awaitFleetImage(t, older, "not disturbed", hasSucceeded)

	require.NoError(t, shared.Delete(t.Context(), older))
	shared.awaitFleetImage(t, younger, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}))
	assert.Equal(t, younger.Spec.Template.URL, shared.Members[edge].AwaitPhase(t, name, v1alpha1.PhaseSucceeded).Spec.URL)
	assert.Equal(t, younger.Spec.Template.URL, shared.Members[frankfurt].AwaitPhase(t, name, v1alpha1.PhaseSucceeded).Spec.URL)
}

// A person's VMDiskImage is never overwritten by one of a rollout: that cluster
// fails and is reported, until the person's is deleted.
func TestForeignImageIsNotOverwritten(t *testing.T) {
	t.Parallel()
	img := shared.newFleetImage("persons", bergen, edge)
	img.Spec.Rollout.MaxFailures = ptr.To(intstr.FromInt32(1))
	name := img.ImageNameForVersion("1")
	theirs := &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: img.Spec.Template}
	theirs.Spec.URL = shared.source.URL + "/persons/their-own.qcow2"
	require.NoError(t, shared.Members[edge].Create(t.Context(), theirs))
	before := shared.Members[edge].AwaitPhase(t, name, v1alpha1.PhaseSucceeded)
	shared.createFleetImage(t, img)
	done := shared.awaitFleetImage(t, img, "rolled out but for edge", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 2, Succeeded: 1, Failed: 1}))
	require.Len(t, done.Status.Failing, 1)
	failing := done.Status.Failing[0]
	assert.Equal(t, edge, failing.Cluster)
	assert.Equal(t, v1alpha1.ClusterFailed, failing.State)
	assert.Equal(t, "NotOurs", failing.Reason)
	assert.Contains(t, failing.Message, "somebody else")
	reported := shared.GetReportedImage(t, edge, name)
	require.NotNil(t, reported.Plan)
	assert.Equal(t, v1alpha1.PlanItemNotOurs, reported.Plan.State)
	assert.Empty(t, reported.Origin)
	after := shared.Members[edge].GetImage(t, name)
	require.NotNil(t, after)
	assert.Equal(t, before.UID, after.UID)
	assert.Equal(t, theirs.Spec.URL, after.Spec.URL)
	assert.NotContains(t, after.Labels, v1alpha1.LabelPlanned)
	assert.Equal(t, before.Generation, after.Generation)

	// What a person has made does not go with the FleetDiskImage either. When the
	// person takes it away, the cluster gets the rollout's.
	require.NoError(t, shared.Members[edge].Delete(t.Context(), after, client.Preconditions{UID: &after.UID}))
	shared.awaitFleetImage(t, img, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}))
	assert.Equal(t, img.Spec.Template.URL, shared.Members[edge].AwaitPhase(t, name, v1alpha1.PhaseSucceeded).Spec.URL)
}
