//go:build linux

package plan

import (
	"context"
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

// withRetirements adds images to a plan that are deleted once they were unreferenced for a
// duration.
func withRetirements(p *v1alpha1.ClusterPlan, after time.Duration, images ...*v1alpha1.VMDiskImage) *v1alpha1.ClusterPlan {
	for _, img := range images {
		p.Spec.Retired = append(p.Spec.Retired, v1alpha1.RetiredImage{Namespace: img.Namespace, Name: img.Name, UnreferencedFor: metav1.Duration{Duration: after}})
	}
	return p
}

// withKept adds images to a plan that must not be deleted.
func withKept(p *v1alpha1.ClusterPlan, images ...*v1alpha1.VMDiskImage) *v1alpha1.ClusterPlan {
	for _, img := range images {
		p.Spec.Kept = append(p.Spec.Kept, v1alpha1.KeptImage{Namespace: img.Namespace, Name: img.Name})
	}
	return p
}

// requireStays checks that an image is the same and not being deleted.
func requireStays(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	got := &v1alpha1.VMDiskImage{}
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(img), got))
	assert.Equal(t, img.UID, got.UID, "%s was recreated", img.Name)
	assert.Nil(t, got.DeletionTimestamp, "%s is being deleted", img.Name)
}

// createPlannedImages stores a plan with images and waits until they are ready.
func createPlannedImages(t *testing.T, images ...*v1alpha1.VMDiskImage) (made []*v1alpha1.VMDiskImage) {
	t.Helper()
	setPlan(t, newPlan(t, nil, images...))
	for _, img := range images {
		made = append(made, env.AwaitSucceeded(t, img))
	}
	return made
}

// createReferencingVM creates a VM that references an image, until the test ends.
func createReferencingVM(t *testing.T, img *v1alpha1.VMDiskImage) *v1alpha1.VirtualMachine {
	t.Helper()
	vm := testenv.NewMachine(img.Namespace, "vm-"+img.Name, img)
	env.Create(t, vm)
	t.Cleanup(func() { assert.NoError(t, client.IgnoreNotFound(env.Client().Delete(context.Background(), vm))) })
	env.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.References.Count == 1 })
	return vm
}

// TestRetirementRemovesOnlyUnreferencedImages wants exactly those images to be deleted that a
// plan has created and retires, and that no VM references.
func TestRetirementRemovesOnlyUnreferencedImages(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "4"))
	ns := env.CreateHomeNamespace(t)
	image := func(name string) *v1alpha1.VMDiskImage { return env.NewImage(ns, name, "/ok/100ms/"+name) }
	all := createPlannedImages(t, image("old"), image("held"), image("wanted"), image("kept"), image("later"), image("forgotten"), image("taken-back"))
	old, held, wanted, kept, later, forgotten, takenBack := all[0], all[1], all[2], all[3], all[4], all[5], all[6]
	foreign := image("foreign")
	env.Create(t, foreign)
	foreign = env.AwaitSucceeded(t, foreign)
	env.Update(t, takenBack, func() { delete(takenBack.Labels, v1alpha1.LabelPlanned) })
	vm := createReferencingVM(t, held)

	p := withKept(newPlan(t, nil, wanted), kept)
	withRetirements(p, 0, old, held, wanted, kept, foreign, takenBack)
	setPlan(t, withRetirements(p, time.Hour, later))
	env.AwaitGone(t, old.DeepCopy())
	left := []*v1alpha1.VMDiskImage{held, wanted, kept, later, forgotten, foreign, takenBack}
	for _, img := range left { // each is reconciled again under the current plan
		env.Update(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "again"} })
		env.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.ObservedRetry == "again" })
		requireStays(t, img)
	}

	t.Run("once it is unreferenced", func(t *testing.T) {
		require.NoError(t, env.Client().Delete(t.Context(), vm))
		env.AwaitGone(t, held.DeepCopy())
		for _, img := range left[1:] {
			requireStays(t, img)
		}
	})
	t.Run("once it is no longer kept", func(t *testing.T) {
		setPlan(t, withRetirements(newPlan(t, nil, wanted), 0, kept))
		env.AwaitGone(t, kept.DeepCopy())
		for _, img := range []*v1alpha1.VMDiskImage{wanted, later, forgotten, foreign, takenBack} {
			requireStays(t, img)
		}
	})
	t.Run("once it is handed over", func(t *testing.T) {
		setPlan(t, withRetirements(newPlan(t, nil, wanted), 0, foreign))
		env.Update(t, foreign, func() { foreign.Labels = map[string]string{v1alpha1.LabelPlanned: "true"} })
		env.AwaitGone(t, foreign.DeepCopy())
		requireStays(t, wanted)
	})
	deletePlanAndAwait(t)
}

// TestPlanKeepsImagesBeyondTheirTTL wants the plan to override the TTL of an image's spec for
// as long as the plan keeps the image.
func TestPlanKeepsImagesBeyondTheirTTL(t *testing.T) {
	testenv.RunInTurn(t, 7)
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "4"))
	ns := env.CreateHomeNamespace(t)
	img, expired := env.NewImage(ns, "image", "/ok/100ms/a"), env.NewImage(ns, "goes", "/ok/100ms/b")
	for _, one := range []*v1alpha1.VMDiskImage{img, expired} {
		one.Spec.DeleteUnreferencedAfter = &metav1.Duration{Duration: time.Hour}
	}
	setPlan(t, withKept(newPlan(t, nil), img))
	env.Create(t, img, expired)
	env.AwaitSucceeded(t, img)
	env.AwaitSucceeded(t, expired)
	// The TTL of both has expired.
	env.WithoutAgent(t, func() {
		for _, one := range []*v1alpha1.VMDiskImage{img, expired} {
			got := &v1alpha1.VMDiskImage{}
			require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(one), got))
			require.NotNil(t, got.Status.References.UnreferencedSince)
			got.Status.References.UnreferencedSince = &metav1.Time{Time: time.Now().Add(-2 * time.Hour)}
			require.NoError(t, env.Client().Status().Update(t.Context(), got))
		}
	})
	visit := func(retry string) {
		env.Update(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: retry} })
	}
	env.AwaitGone(t, expired.DeepCopy())
	visit("kept")
	got := env.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.ObservedRetry == "kept" })
	assert.Greater(t, time.Since(got.Status.References.UnreferencedSince.Time), time.Hour)
	requireStays(t, img)
	setPlan(t, newPlan(t, nil))
	visit("no longer kept") // otherwise it is reconciled once a minute
	env.AwaitGone(t, img.DeepCopy())
	deletePlanAndAwait(t)
}

// TestRejectedPlanRetiresNothing has rejected plans retire existing images.
func TestRejectedPlanRetiresNothing(t *testing.T) {
	testenv.RunInTurn(t, 8)
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "4"))
	ns := env.CreateHomeNamespace(t)
	img := createPlannedImages(t, env.NewImage(ns, "image", "/ok/100ms/a"))[0]
	acknowledged := newPlan(t, nil)
	setPlan(t, acknowledged) // without images

	older := withRetirements(newPlan(t, nil), 0, img)
	older.Spec.PlanVersion = acknowledged.Spec.PlanVersion
	older.Spec.Sequence--
	another := withRetirements(newPlan(t, nil), 0, img)
	another.Spec.ClusterUID = "another"
	for reason, p := range map[string]*v1alpha1.ClusterPlan{v1alpha1.ReasonPlanOlder: older, v1alpha1.ReasonPlanForAnotherCluster: another} {
		t.Run(reason, func(t *testing.T) {
			storePlan(t, p)
			env.AwaitLedgerCondition(t, v1alpha1.ConditionPlanAccepted, metav1.ConditionFalse, reason)
			env.Update(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: reason} })
			env.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.ObservedRetry == reason })
			requireStays(t, img)
		})
	}
	t.Run("and the next one does", func(t *testing.T) {
		setPlan(t, withRetirements(newPlan(t, nil), 0, img))
		env.AwaitGone(t, img.DeepCopy())
	})
	deletePlanAndAwait(t)
}

// TestRetirementSurvivesAgentCrashes kills the agent after every kind of step: the next agent
// finishes the deletion, and the image of a VM that was created meanwhile stays.
func TestRetirementSurvivesAgentCrashes(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "4"))
	ns := env.CreateHomeNamespace(t)
	all := createPlannedImages(t, env.NewImage(ns, "old", "/ok/100ms/a"), env.NewImage(ns, "held", "/ok/100ms/b"))
	old, held := all[0], all[1]
	env.WithoutAgent(t, func() {
		storePlan(t, withRetirements(newPlan(t, nil), 0, old, held))
		first, _ := startProxiedAgent(t)
		require.True(t, testenv.AwaitCondition(t, func() bool { // the first visible step
			got := &v1alpha1.VMDiskImage{}
			err := env.Client().Get(t.Context(), client.ObjectKeyFromObject(old), got)
			return apierrors.IsNotFound(err) || (err == nil && got.DeletionTimestamp != nil)
		}))
		first.Kill()
		<-first.Done()
	})
	env.AwaitGone(t, old.DeepCopy())
	env.AwaitGone(t, held.DeepCopy())

	t.Run("a machine comes while no agent runs", func(t *testing.T) {
		held = createPlannedImages(t, env.NewImage(ns, "held", "/ok/100ms/b"))[0]
		vm := testenv.NewMachine(ns, "vm", held)
		env.WithoutAgent(t, func() {
			storePlan(t, withRetirements(newPlan(t, nil), 0, held))
			env.Create(t, vm)
		})
		env.AwaitImage(t, held, func(got *v1alpha1.VMDiskImage) bool { return got.Status.References.Count == 1 })
		requireStays(t, held)
		require.NoError(t, env.Client().Delete(t.Context(), vm))
		env.AwaitGone(t, held.DeepCopy())
	})
	deletePlanAndAwait(t)
}

// withPrunes adds images to a plan that are pruned after an undo window.
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

// awaitPrune waits until the status of an image has a state of its prune.
func awaitPrune(t *testing.T, img *v1alpha1.VMDiskImage, phase v1alpha1.Phase, state v1alpha1.PruneState, reason string) {
	t.Helper()
	got := env.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool {
		return got.Status.Phase == phase && got.Status.Prune != nil && got.Status.Prune.State == state && got.Status.Prune.Reason == reason
	})
	assert.Equal(t, img.UID, got.UID)
	assert.Nil(t, got.DeletionTimestamp)
}

// awaitPruned waits until the report has an image as pruned.
func awaitPruned(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		p := env.ReadReportedImage(t, img).Prune
		return p != nil && p.ImageUID == img.UID && p.State == v1alpha1.PrunePruned
	}), "%s is not reported as pruned", img.Name)
}

// TestPrunesOnlyUnchangedUnreferencedImages wants exactly those images to be pruned that are as
// they were reported and that no VM references.
func TestPrunesOnlyUnchangedUnreferencedImages(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "4"))
	ns := env.CreateHomeNamespace(t)
	image := func(name string) *v1alpha1.VMDiskImage { return env.NewImage(ns, name, "/ok/100ms/"+name) }
	all := createPlannedImages(t, image("pruned"), image("held"), image("wanted"), image("changed"), image("recreated"), image("later"))
	pruned, held, wanted, changed, recreated, later := all[0], all[1], all[2], all[3], all[4], all[5]
	createReferencingVM(t, held)

	p := withPrunes(newPlan(t, nil, wanted), 0, pruned, held, wanted, changed, recreated)
	p.Spec.Prunes[3].Revision = "another"
	p.Spec.Prunes[4].ImageUID = "of-one-before"
	setPlan(t, withPrunes(p, time.Hour, later))
	env.AwaitGone(t, pruned.DeepCopy())
	awaitPruned(t, pruned)
	awaitPrune(t, held, v1alpha1.PhaseSucceeded, v1alpha1.PruneSkipped, v1alpha1.PruneReferenced)
	awaitPrune(t, wanted, v1alpha1.PhaseSucceeded, v1alpha1.PruneSkipped, v1alpha1.PruneWanted)
	awaitPrune(t, changed, v1alpha1.PhaseSucceeded, v1alpha1.PruneSkipped, v1alpha1.PruneChanged)
	awaitPrune(t, later, v1alpha1.PhasePrunePending, v1alpha1.PrunePending, "")
	requireStays(t, recreated)

	t.Run("a machine acquires what is to go", func(t *testing.T) {
		vm := createReferencingVM(t, later)
		awaitPrune(t, later, v1alpha1.PhaseSucceeded, v1alpha1.PruneSkipped, v1alpha1.PruneReferenced)
		env.AwaitImage(t, later, func(got *v1alpha1.VMDiskImage) bool { return got.Status.References.Count == 1 })
		require.True(t, testenv.AwaitCondition(t, func() bool {
			got := &v1alpha1.VirtualMachine{}
			require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(vm), got))
			return got.Status.Pinned != nil && got.Status.Pinned.UID == later.UID && got.Status.Pinned.AcquiredAt != nil
		}))
	})
	t.Run("a prune that the plan no longer has is undone", func(t *testing.T) {
		p := withPrunes(newPlan(t, nil), time.Hour, recreated)
		p.Spec.Prunes[0].UID = "another-prune"
		setPlan(t, p)
		awaitPrune(t, recreated, v1alpha1.PhasePrunePending, v1alpha1.PrunePending, "")
		deletePlanAndAwait(t)
		awaitPrune(t, recreated, v1alpha1.PhaseSucceeded, v1alpha1.PruneUndone, v1alpha1.PruneWithdrawn)
	})
}
