//go:build linux

package prune_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// What is not as it was reported stays.
func TestImageChangedAfterReportIsSkipped(t *testing.T) {
	t.Parallel()
	in := shared.Members[edge]
	in.createLeftoverImages(t, "changed-goes", "changed-source", "changed-again", "changed-gone")
	goes := in.GetImage(t, "changed-goes")
	// What a FleetDiskImage is about to want, as it will.
	wanted, late := newFleetImage("changed-wanted", edge), newFleetImage("changed-late", edge)
	for _, img := range []*v1alpha1.FleetDiskImage{wanted, late} {
		name := img.ImageNameForVersion("1")
		require.NoError(t, in.Create(t.Context(), &v1alpha1.VMDiskImage{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{v1alpha1.LabelPlanned: "true"}}, Spec: img.Spec.Template,
		}))
		in.AwaitPhase(t, name, v1alpha1.PhaseSucceeded)
	}
	r := shared.createCompleteReport(t, "changed-", edge)
	require.Equal(t, int32(6), r.Status.Candidates.Count, "%+v", shared.clustersInReport(t, r)[edge])

	was := in.GetImage(t, "changed-source").Status.Revision
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		img := in.GetImage(t, "changed-source")
		img.Spec.URL = "http://images.example.com/changed/another.qcow2"
		return in.Update(t.Context(), img)
	}))
	in.AwaitImage(t, "changed-source", "of its new source", func(img *v1alpha1.VMDiskImage) bool {
		return img.Status.Phase == v1alpha1.PhaseSucceeded && img.Status.Revision != was
	})
	for _, name := range []string{"changed-again", "changed-gone"} {
		img := in.GetImage(t, name)
		require.NoError(t, in.Delete(t.Context(), img.DeepCopy()))
		in.awaitImageGone(t, img)
	}
	in.createLeftoverImages(t, "changed-again")
	again := in.GetImage(t, "changed-again")
	shared.rollOut(t, wanted)

	p := withUndoWindow(newImagePrune("changed-tentative", r), time.Hour)
	shared.CreateForTest(t, p)
	shared.awaitPrune(t, p, "two pending", func(p *v1alpha1.ImagePrune) bool {
		return p.Status.Targets == v1alpha1.TargetCounts{Total: 6, Pending: 2, Pruned: 2, Skipped: 2}
	})
	in.AwaitPhase(t, late.ImageNameForVersion("1"), v1alpha1.PhasePrunePending)
	shared.rollOut(t, late)
	tentative := shared.awaitPrune(t, p, "one pending", func(p *v1alpha1.ImagePrune) bool {
		return p.Status.Targets == v1alpha1.TargetCounts{Total: 6, Pending: 1, Pruned: 2, Skipped: 3}
	})
	want := map[string]string{
		edge + "/changed-source": "Skipped Changed", edge + "/" + wanted.ImageNameForVersion("1"): "Skipped Wanted", edge + "/" + late.ImageNameForVersion("1"): "Skipped Wanted",
	}
	assert.Equal(t, want, skippedReasons(tentative))
	shared.undoPrune(t, p)
	shared.awaitPruneEnd(t, p, v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 6, Pruned: 2, Skipped: 3, Undone: 1})
	in.requireServing(t, goes.Name)

	p = newImagePrune("changed-good", r)
	shared.CreateForTest(t, p)
	good := shared.awaitPruneEnd(t, p, v1alpha1.ImagePruneComplete, v1alpha1.ReasonPartlyPruned, v1alpha1.TargetCounts{Total: 6, Pruned: 3, Skipped: 3})
	assert.Equal(t, want, skippedReasons(good))
	in.awaitImageGone(t, goes)
	for _, name := range []string{"changed-source", again.Name, wanted.ImageNameForVersion("1"), late.ImageNameForVersion("1")} {
		in.requireServing(t, name)
	}
	assert.Equal(t, again.UID, in.GetImage(t, again.Name).UID, "another image of that name is none of the report's")
}

// A report that is not as it was reviewed has nothing go, nor one that is gone.
func TestEditedReportIsRefused(t *testing.T) {
	t.Parallel()
	in := shared.Members[edge]
	in.createLeftoverImages(t, "review-a", "review-b")
	r := shared.createCompleteReport(t, "review-", edge)
	require.Equal(t, int32(2), r.Status.Candidates.Count)
	fails := func(p *v1alpha1.ImagePrune, reason string) {
		t.Helper()
		got := shared.awaitPrune(t, p, "failed", func(p *v1alpha1.ImagePrune) bool { return p.Status.Phase.IsFinal() })
		assert.Equal(t, v1alpha1.ImagePruneFailed, got.Status.Phase)
		assert.Equal(t, reason, got.Status.Reason, got.Status.Message)
		for _, name := range []string{"review-a", "review-b"} {
			in.requireServing(t, name)
		}
	}

	other := newImagePrune("review-other", r)
	other.Spec.ReportRef.Digest = "0000" + r.Status.Digest[4:]
	shared.CreateForTest(t, other)
	fails(other, v1alpha1.ReasonReportChanged)

	// The report goes while a prune goes by it: what has not gone stays.
	running := shared.createPendingPrune(t, "review-running", r, time.Hour)
	require.NoError(t, shared.Delete(t.Context(), r.DeepCopy()))
	fails(running, v1alpha1.ReasonReportMissing)
	missing := newImagePrune("review-missing", r)
	shared.CreateForTest(t, missing)
	fails(missing, v1alpha1.ReasonReportMissing)

	// One of its pages is another than was reviewed.
	r = newPruneReport("review-edited", "review-", edge)
	shared.CreateForTest(t, r)
	r = shared.awaitReportComplete(t, r)
	shared.editReport(t, r, "review-b")
	edited := newImagePrune("review-edited", r)
	shared.CreateForTest(t, edited)
	fails(edited, v1alpha1.ReasonReportChanged)
}

// editReport has a candidate of a report be one that it does not list. Nobody but the hub
// can, as long as the chart's policy is bound.
func (f *testFleet) editReport(t *testing.T, r *v1alpha1.PruneReport, candidate string) {
	t.Helper()
	page := f.listReportPages(t, r)[0]
	for i := range page.Clusters {
		for n := range page.Clusters[i].Candidates {
			if c := &page.Clusters[i].Candidates[n]; c.Name == candidate {
				c.UID = "another"
			}
		}
	}
	require.True(t, apierrors.IsForbidden(f.Update(t.Context(), page.DeepCopy())))
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "ot-hub-prune-pages"}}
	require.NoError(t, f.Get(t.Context(), client.ObjectKeyFromObject(binding), binding))
	require.NoError(t, f.Delete(t.Context(), binding))
	t.Cleanup(func() {
		binding.ResourceVersion, binding.UID = "", ""
		require.NoError(t, f.Create(context.Background(), binding))
	})
	require.True(t, testenv.AwaitCondition(t, func() bool { return f.Update(t.Context(), page.DeepCopy()) == nil }))
}

// Of two ImagePrunes at one image the older one has it; what it leaves is the other's.
// One that is deleted in its undo window is undone.
func TestDeletedImagePruneStops(t *testing.T) {
	t.Parallel()
	in := shared.Members[bergen]
	in.createLeftoverImages(t, "two-a")
	img := in.GetImage(t, "two-a")
	r := shared.createCompleteReport(t, "two-", bergen)
	older := shared.createPendingPrune(t, "two-older", r, time.Hour)
	// Of those that were created within a second the name decides.
	younger := withUndoWindow(newImagePrune("two-younger", r), time.Hour)
	shared.CreateForTest(t, younger)
	shared.awaitPrune(t, younger, "waits for the other", func(p *v1alpha1.ImagePrune) bool {
		return p.Status.Phase == v1alpha1.ImagePruneRunning && p.Status.Targets == v1alpha1.TargetCounts{Total: 1, Waiting: 1}
	})
	assert.Equal(t, older.UID, in.AwaitPhase(t, "two-a", v1alpha1.PhasePrunePending).Status.Prune.UID)
	require.NoError(t, shared.Delete(t.Context(), younger))
	require.NoError(t, shared.Delete(t.Context(), older))
	in.requireServing(t, "two-a")
	require.True(t, testenv.AwaitCondition(t, func() bool {
		got := in.GetImage(t, "two-a")
		return got.Status.Prune != nil && got.Status.Prune.State == v1alpha1.PruneUndone && got.Status.Prune.Reason == v1alpha1.PruneWithdrawn
	}), "%+v", in.GetImage(t, "two-a").Status.Prune)

	again := shared.createPendingPrune(t, "two-again", r, time.Hour)
	next := newImagePrune("two-next", r)
	shared.CreateForTest(t, next)
	shared.awaitPrune(t, next, "waits for the other", func(p *v1alpha1.ImagePrune) bool { return p.Status.Targets.Waiting == 1 })
	shared.undoPrune(t, again)
	shared.awaitPruneEnd(t, again, v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 1, Undone: 1})
	shared.awaitPruned(t, next, 1)
	in.awaitImageGone(t, img)
	got := &v1alpha1.ImagePrune{}
	require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(again), got))
	assert.Equal(t, v1alpha1.ImagePruneUndone, got.Status.Phase, "what has ended stays so")
}
