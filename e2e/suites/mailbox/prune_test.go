//go:build linux

package mailbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// withPrunes adds to a plan that images are to go after an undo window.
func withPrunes(p *v1alpha1.ClusterPlan, window time.Duration, images ...*v1alpha1.VMDiskImage) *v1alpha1.ClusterPlan {
	for _, img := range images {
		p.Spec.Prunes = append(p.Spec.Prunes, v1alpha1.PlannedPrune{
			Namespace: img.Namespace, Name: img.Name, ImageUID: img.UID, Revision: img.Spec.Revision(),
			UnreferencedSince: time.Now().Add(time.Hour).Unix(), Others: true,
			UID: "prune-of-a-test", UndoWindow: metav1.Duration{Duration: window},
		})
	}
	return p
}

// awaitPrune waits until an image says how far its prune is.
func awaitPrune(t *testing.T, img *v1alpha1.VMDiskImage, phase v1alpha1.Phase, state v1alpha1.PruneState, reason string) {
	t.Helper()
	got := testScene.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool {
		return got.Status.Phase == phase && got.Status.Prune != nil && got.Status.Prune.State == state && got.Status.Prune.Reason == reason
	})
	assert.Equal(t, img.UID, got.UID)
	assert.Nil(t, got.DeletionTimestamp)
}

// awaitPruned waits until the report tells that a pruned image is gone.
func awaitPruned(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	require.True(t, testenv.Await(t, func() bool {
		var reports v1alpha1.ClusterReportList
		require.NoError(t, testScene.Client().List(t.Context(), &reports, client.InNamespace(program.AgentNamespace)))
		for i := range reports.Items {
			if reports.Items[i].Page == nil {
				continue
			}
			for _, entry := range reports.Items[i].Page.Images {
				if p := entry.Prune; entry.Namespace == img.Namespace && entry.Name == img.Name && p != nil && p.ImageUID == img.UID && p.State == v1alpha1.PrunePruned {
					return true
				}
			}
		}
		return false
	}), "the report does not tell that %s is gone", img.Name)
}

// TestPrunesOnlyUnchangedUnreferencedImages wants those to go, and only those, that are as they were reported
// and that nobody needs.
func TestPrunesOnlyUnchangedUnreferencedImages(t *testing.T) {
	testScene.SetPolicy(t, newPolicy())
	ns := createHomeNamespace(t)
	image := func(name string) *v1alpha1.VMDiskImage { return testScene.NewImage(ns, name, "/ok/100ms/"+name) }
	all := createPlannedImages(t, image("goes"), image("held"), image("wanted"), image("changed"), image("anew"), image("later"))
	goes, held, wanted, changed, anew, later := all[0], all[1], all[2], all[3], all[4], all[5]
	createReferencingVM(t, held)

	p := withPrunes(newPlan(t, nil, wanted), 0, goes, held, wanted, changed, anew)
	p.Spec.Prunes[3].Revision = "another"
	p.Spec.Prunes[4].ImageUID = "of-one-before"
	setPlan(t, withPrunes(p, time.Hour, later))
	testScene.AwaitGone(t, goes.DeepCopy())
	awaitPruned(t, goes)
	awaitPrune(t, held, v1alpha1.PhaseSucceeded, v1alpha1.PruneSkipped, v1alpha1.PruneReferenced)
	awaitPrune(t, wanted, v1alpha1.PhaseSucceeded, v1alpha1.PruneSkipped, v1alpha1.PruneWanted)
	awaitPrune(t, changed, v1alpha1.PhaseSucceeded, v1alpha1.PruneSkipped, v1alpha1.PruneChanged)
	awaitPrune(t, later, v1alpha1.PhasePrunePending, v1alpha1.PrunePending, "")
	requireStays(t, anew)

	t.Run("a machine acquires what is to go", func(t *testing.T) {
		vm := createReferencingVM(t, later)
		awaitPrune(t, later, v1alpha1.PhaseSucceeded, v1alpha1.PruneSkipped, v1alpha1.PruneReferenced)
		testScene.AwaitImage(t, later, func(got *v1alpha1.VMDiskImage) bool { return got.Status.References.Count == 1 })
		require.True(t, testenv.Await(t, func() bool {
			got := &v1alpha1.VirtualMachine{}
			require.NoError(t, testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(vm), got))
			return got.Status.Pinned != nil && got.Status.Pinned.UID == later.UID && got.Status.Pinned.AcquiredAt != nil
		}))
	})
	t.Run("what the plan asks for no more is undone", func(t *testing.T) {
		p := withPrunes(newPlan(t, nil), time.Hour, anew)
		p.Spec.Prunes[0].UID = "another-prune"
		setPlan(t, p)
		awaitPrune(t, anew, v1alpha1.PhasePrunePending, v1alpha1.PrunePending, "")
		deletePlanAndAwait(t)
		awaitPrune(t, anew, v1alpha1.PhaseSucceeded, v1alpha1.PruneUndone, v1alpha1.PruneWithdrawn)
	})
}
