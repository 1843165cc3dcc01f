//go:build linux

package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// Versions that are kept stay; older ones go where no machine has needed them for
// as long as was said, and nowhere else.
func TestRetention(t *testing.T) {
	t.Parallel()
	img := shared.newFleetImage("retention", bergen, edge)
	img.Spec.Retention = &v1alpha1.Retention{KeepVersions: 2, KeepUnreferencedFor: &metav1.Duration{Duration: time.Second}}
	names := []string{img.ImageNameForVersion("1"), img.ImageNameForVersion("2"), img.ImageNameForVersion("3")}
	shared.createFleetImage(t, img)
	shared.awaitFleetImage(t, img, "rolled out", hasSucceeded)
	vm := shared.Members[bergen].CreateMachine(t, "retention", names[0])
	// A person's image of a name that is as if it were one of an older version.
	theirs := &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "retention-0"}, Spec: img.Spec.Template}
	require.NoError(t, shared.Members[edge].Create(t.Context(), theirs))
	require.True(t, testenv.AwaitCondition(t, func() bool { return shared.GetReportedImage(t, bergen, names[0]).References == 1 }))

	for n, version := range []string{"2", "3"} {
		shared.updateFleetImage(t, img, func() { shared.setVersion(img, version) })
		shared.awaitFleetImage(t, img, "version "+version+" rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}))
		if n == 0 {
			for _, cluster := range []string{bergen, edge} {
				require.True(t, testenv.AwaitCondition(t, func() bool { return plansRetention(shared.getHubPlan(t, cluster), names[0]) }), "%s keeps two versions", cluster)
				require.NotNil(t, shared.Members[cluster].GetImage(t, names[0]), cluster)
			}
		}
	}
	// Nothing would keep the images under their former names.
	for what, rename := range map[string]func(*v1alpha1.FleetDiskImageSpec){
		"the image":               func(s *v1alpha1.FleetDiskImageSpec) { s.ImageName = "other" },
		"the namespace":           func(s *v1alpha1.FleetDiskImageSpec) { s.TargetNamespace = "other" },
		"and back to a version":   func(s *v1alpha1.FleetDiskImageSpec) { s.ImageName, s.Version = "other", "2" },
		"and back to another one": func(s *v1alpha1.FleetDiskImageSpec) { s.TargetNamespace, s.Version = "other", "1" },
	} {
		renamed := img.DeepCopy()
		rename(&renamed.Spec)
		require.ErrorContains(t, shared.Patch(t.Context(), renamed, client.MergeFrom(img), client.DryRunAll), "give the image a new version", what)
	}
	renamed := img.DeepCopy()
	renamed.Spec.ImageName, renamed.Spec.Version = "other", "4"
	require.NoError(t, shared.Patch(t.Context(), renamed, client.MergeFrom(img), client.DryRunAll))

	shared.Members[edge].AwaitImageGone(t, names[0], "")
	for _, cluster := range []string{bergen, edge} {
		require.True(t, testenv.AwaitCondition(t, func() bool { // each plan is written by itself
			plan := shared.getHubPlan(t, cluster)
			return plansRetirement(plan, names[0]) && plansRetention(plan, names[1])
		}), cluster)
		shared.Members[cluster].AwaitPhase(t, names[1], v1alpha1.PhaseSucceeded)
		shared.Members[cluster].AwaitPhase(t, names[2], v1alpha1.PhaseSucceeded)
	}
	// The machine holds what it names, while as much has happened beside it as in
	// the member where the image has gone.
	held := shared.Members[bergen].AwaitPhase(t, names[0], v1alpha1.PhaseSucceeded)
	assert.Zero(t, held.DeletionTimestamp)
	require.NoError(t, shared.Members[bergen].Delete(t.Context(), vm))
	shared.Members[bergen].AwaitImageGone(t, names[0], "")
	assert.NotNil(t, shared.Members[edge].GetImage(t, theirs.Name))
}

// A FleetDiskImage whose images are retained is deleted at once, and no plan requests or
// keeps them afterwards.
func TestRetainDeletionPolicy(t *testing.T) {
	testenv.RunInTurn(t, 11)
	t.Parallel()
	img := shared.newFleetImage("retained", bergen, edge)
	name := img.ImageNameForVersion("1")
	shared.createFleetImage(t, img)
	shared.awaitFleetImage(t, img, "rolled out", hasSucceeded)
	require.NoError(t, shared.Delete(t.Context(), img))
	shared.awaitFleetImageGone(t, img)
	for _, cluster := range []string{bergen, edge} {
		shared.awaitPlan(t, cluster, "without it", func(p *v1alpha1.ClusterPlan) bool {
			return plannedImage(p, name) == nil && !plansRetention(p, name) && !plansRetirement(p, name)
		})
	}
	shared.awaitFreshPlans(t, "retained-beside", bergen, edge)
	for _, cluster := range []string{bergen, edge} {
		there := shared.Members[cluster].GetImage(t, name)
		require.NotNil(t, there, cluster)
		assert.Nil(t, there.DeletionTimestamp, cluster)
	}
}

// One whose images are to be deleted stays until they are: of every version, and
// each one when no machine needs it any more.
func TestDeleteDeletionPolicy(t *testing.T) {
	t.Parallel()
	img := shared.newFleetImage("deleted", bergen, edge)
	img.Spec.DeletionPolicy = v1alpha1.DeletionDelete
	names := []string{img.ImageNameForVersion("1"), img.ImageNameForVersion("2")}
	shared.createFleetImage(t, img)
	shared.awaitFleetImage(t, img, "rolled out", hasSucceeded)
	vm := shared.Members[edge].CreateMachine(t, "deleted", names[0])
	require.True(t, testenv.AwaitCondition(t, func() bool { return shared.GetReportedImage(t, edge, names[0]).References == 1 }))
	shared.updateFleetImage(t, img, func() { shared.setVersion(img, "2") })
	shared.awaitFleetImage(t, img, "rolled out", hasSucceeded)

	require.NoError(t, shared.Delete(t.Context(), img))
	for _, name := range names {
		shared.Members[bergen].AwaitImageGone(t, name, "")
	}
	shared.Members[edge].AwaitImageGone(t, names[1], "")
	// The others are waited for as well, until they have said that they have none.
	shared.awaitFleetImage(t, img, "waits for edge alone", func(img *v1alpha1.FleetDiskImage) bool {
		return img.Status.Reason == v1alpha1.ReasonDeletingImages && !hasMessage(bergen)(img)
	}, hasMessage(edge, string(v1alpha1.DeletionRetain)))
	held := shared.Members[edge].GetImage(t, names[0])
	require.NotNil(t, held, "a machine needs it")
	assert.NotNil(t, held.Status.Serving, "it serves on")
	require.NoError(t, shared.Members[edge].Delete(t.Context(), vm))
	shared.Members[edge].AwaitImageGone(t, names[0], "")
	shared.awaitFleetImageGone(t, img)
	for _, cluster := range []string{bergen, edge} {
		shared.awaitPlan(t, cluster, "without it", func(p *v1alpha1.ClusterPlan) bool {
			return !plansRetirement(p, names[0]) && !plansRetirement(p, names[1])
		})
		assert.Equal(t, 1, shared.Members[cluster].countDownloads(t, names[0]), cluster)
		assert.Equal(t, 1, shared.Members[cluster].countDownloads(t, names[1]), cluster)
	}
}

// awaitFleetImageGone waits until a FleetDiskImage is.
func (f *testFleet) awaitFleetImageGone(t *testing.T, img *v1alpha1.FleetDiskImage) {
	t.Helper()
	got := &v1alpha1.FleetDiskImage{}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return apierrors.IsNotFound(f.Get(t.Context(), client.ObjectKeyFromObject(img), got))
	}), "FleetDiskImage %s is still there: %s", img.Name, got.Status.Message)
}
