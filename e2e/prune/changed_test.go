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
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// What is not as it was reported stays.
func TestImageChangesAfterTheReport(t *testing.T) {
	t.Parallel()
	in := shared.sites[edge]
	in.left(t, "changed-goes", "changed-source", "changed-again", "changed-gone")
	goes := in.image(t, "changed-goes")
	// What a FleetDiskImage is about to want, as it will.
	wanted, late := fleetImage("changed-wanted", edge), fleetImage("changed-late", edge)
	for _, img := range []*v1alpha1.FleetDiskImage{wanted, late} {
		name := img.VMDiskImage("1")
		require.NoError(t, in.Create(t.Context(), &v1alpha1.VMDiskImage{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{v1alpha1.LabelPlanned: "true"}}, Spec: img.Spec.Template,
		}))
		in.has(t, name, v1alpha1.PhaseSucceeded)
	}
	r := shared.report(t, "changed-", edge)
	require.Equal(t, int32(6), r.Status.Candidates.Count, "%+v", shared.said(t, r)[edge])

	was := in.image(t, "changed-source").Status.Revision
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		img := in.image(t, "changed-source")
		img.Spec.URL = "http://images.example.com/changed/another.qcow2"
		return in.Update(t.Context(), img)
	}))
	in.eventually(t, "changed-source", "of its new source", func(img *v1alpha1.VMDiskImage) bool {
		return img.Status.Phase == v1alpha1.PhaseSucceeded && img.Status.Revision != was
	})
	for _, name := range []string{"changed-again", "changed-gone"} {
		img := in.image(t, name)
		require.NoError(t, in.Delete(t.Context(), img.DeepCopy()))
		in.loses(t, img)
	}
	in.left(t, "changed-again")
	again := in.image(t, "changed-again")
	shared.rollOut(t, wanted)

	p := within(imagePrune("changed-tentative", r), time.Hour)
	shared.apply(t, p)
	shared.awaits(t, p, "two pending", func(p *v1alpha1.ImagePrune) bool {
		return p.Status.Targets == v1alpha1.TargetCounts{Total: 6, Pending: 2, Pruned: 2, Skipped: 2}
	})
	in.has(t, late.VMDiskImage("1"), v1alpha1.PhasePrunePending)
	shared.rollOut(t, late)
	tentative := shared.awaits(t, p, "one pending", func(p *v1alpha1.ImagePrune) bool {
		return p.Status.Targets == v1alpha1.TargetCounts{Total: 6, Pending: 1, Pruned: 2, Skipped: 3}
	})
	want := map[string]string{
		edge + "/changed-source": "Skipped Changed", edge + "/" + wanted.VMDiskImage("1"): "Skipped Wanted", edge + "/" + late.VMDiskImage("1"): "Skipped Wanted",
	}
	assert.Equal(t, want, skipped(tentative))
	shared.undo(t, p)
	shared.ends(t, p, v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 6, Pruned: 2, Skipped: 3, Undone: 1})
	in.serves(t, goes.Name)

	p = imagePrune("changed-good", r)
	shared.apply(t, p)
	good := shared.ends(t, p, v1alpha1.ImagePruneComplete, v1alpha1.ReasonPartlyPruned, v1alpha1.TargetCounts{Total: 6, Pruned: 3, Skipped: 3})
	assert.Equal(t, want, skipped(good))
	in.loses(t, goes)
	for _, name := range []string{"changed-source", again.Name, wanted.VMDiskImage("1"), late.VMDiskImage("1")} {
		in.serves(t, name)
	}
	assert.Equal(t, again.UID, in.image(t, again.Name).UID, "another image of that name is none of the report's")
}

// A report that is not as it was reviewed has nothing go, nor one that is gone.
func TestReportIsNotAsItWasReviewed(t *testing.T) {
	t.Parallel()
	in := shared.sites[edge]
	in.left(t, "review-a", "review-b")
	r := shared.report(t, "review-", edge)
	require.Equal(t, int32(2), r.Status.Candidates.Count)
	fails := func(p *v1alpha1.ImagePrune, reason string) {
		t.Helper()
		got := shared.awaits(t, p, "failed", func(p *v1alpha1.ImagePrune) bool { return p.Status.Phase.Ended() })
		assert.Equal(t, v1alpha1.ImagePruneFailed, got.Status.Phase)
		assert.Equal(t, reason, got.Status.Reason, got.Status.Message)
		for _, name := range []string{"review-a", "review-b"} {
			in.serves(t, name)
		}
	}

	other := imagePrune("review-other", r)
	other.Spec.ReportRef.Digest = "0000" + r.Status.Digest[4:]
	shared.apply(t, other)
	fails(other, v1alpha1.ReasonReportChanged)

	// The report goes while a prune goes by it: what has not gone stays.
	running := shared.pending(t, "review-running", r, time.Hour)
	require.NoError(t, shared.Delete(t.Context(), r.DeepCopy()))
	fails(running, v1alpha1.ReasonReportMissing)
	missing := imagePrune("review-missing", r)
	shared.apply(t, missing)
	fails(missing, v1alpha1.ReasonReportMissing)

	// One of its pages is another than was reviewed.
	r = pruneReport("review-edited", "review-", edge)
	shared.ask(t, r)
	r = shared.complete(t, r)
	shared.edit(t, r, "review-b")
	edited := imagePrune("review-edited", r)
	shared.apply(t, edited)
	fails(edited, v1alpha1.ReasonReportChanged)
}

// edit has a candidate of a report be one that it does not list. Nobody but the hub
// can, as long as the chart's policy is bound.
func (f *fleet) edit(t *testing.T, r *v1alpha1.PruneReport, candidate string) {
	t.Helper()
	page := f.pages(t, r)[0]
	for i := range page.Clusters {
		for n := range page.Clusters[i].Candidates {
			if c := &page.Clusters[i].Candidates[n]; c.Name == candidate {
				c.UID = "another"
			}
		}
	}
	require.True(t, apierrors.IsForbidden(f.Update(t.Context(), page.DeepCopy())))
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "ot-hub-prune-pages"}}
	require.NoError(t, f.Get(t.Context(), keyOf(binding), binding))
	require.NoError(t, f.Delete(t.Context(), binding))
	t.Cleanup(func() {
		binding.ResourceVersion, binding.UID = "", ""
		require.NoError(t, f.Create(context.Background(), binding))
	})
	require.True(t, scene.Await(t, func() bool { return f.Update(t.Context(), page.DeepCopy()) == nil }))
}

// Of two ImagePrunes at one image the older one has it; what it leaves is the other's.
// One that is deleted in its undo window is undone.
func TestTwoImagePrunesAndOneIsDeleted(t *testing.T) {
	t.Parallel()
	in := shared.sites[bergen]
	in.left(t, "two-a")
	img := in.image(t, "two-a")
	r := shared.report(t, "two-", bergen)
	older := shared.pending(t, "two-older", r, time.Hour)
	// Of those that were created within a second the name decides.
	younger := within(imagePrune("two-younger", r), time.Hour)
	shared.apply(t, younger)
	shared.awaits(t, younger, "waits for the other", func(p *v1alpha1.ImagePrune) bool {
		return p.Status.Phase == v1alpha1.ImagePruneRunning && p.Status.Targets == v1alpha1.TargetCounts{Total: 1, Waiting: 1}
	})
	assert.Equal(t, older.UID, in.has(t, "two-a", v1alpha1.PhasePrunePending).Status.Prune.UID)
	require.NoError(t, shared.Delete(t.Context(), younger))
	require.NoError(t, shared.Delete(t.Context(), older))
	in.serves(t, "two-a")
	require.True(t, scene.Await(t, func() bool {
		got := in.image(t, "two-a")
		return got.Status.Prune != nil && got.Status.Prune.State == v1alpha1.PruneUndone && got.Status.Prune.Reason == v1alpha1.PruneWithdrawn
	}), "%+v", in.image(t, "two-a").Status.Prune)

	again := shared.pending(t, "two-again", r, time.Hour)
	next := imagePrune("two-next", r)
	shared.apply(t, next)
	shared.awaits(t, next, "waits for the other", func(p *v1alpha1.ImagePrune) bool { return p.Status.Targets.Waiting == 1 })
	shared.undo(t, again)
	shared.ends(t, again, v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 1, Undone: 1})
	shared.pruned(t, next, 1)
	in.loses(t, img)
	got := &v1alpha1.ImagePrune{}
	require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(again), got))
	assert.Equal(t, v1alpha1.ImagePruneUndone, got.Status.Phase, "what has ended stays so")
}
