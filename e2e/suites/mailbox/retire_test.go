//go:build linux

package mailbox

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

// withRetirements adds to a plan that images are to go once nobody has referenced them
// for so long.
func withRetirements(p *v1alpha1.ClusterPlan, after time.Duration, images ...*v1alpha1.VMDiskImage) *v1alpha1.ClusterPlan {
	for _, img := range images {
		p.Spec.Retired = append(p.Spec.Retired, v1alpha1.RetiredImage{Namespace: img.Namespace, Name: img.Name, UnreferencedFor: metav1.Duration{Duration: after}})
	}
	return p
}

// withKept adds to a plan that images are to stay.
func withKept(p *v1alpha1.ClusterPlan, images ...*v1alpha1.VMDiskImage) *v1alpha1.ClusterPlan {
	for _, img := range images {
		p.Spec.Kept = append(p.Spec.Kept, v1alpha1.KeptImage{Namespace: img.Namespace, Name: img.Name})
	}
	return p
}

// requireStays wants an image to be there as it was, and not to be deleted.
func requireStays(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	got := &v1alpha1.VMDiskImage{}
	require.NoError(t, testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(img), got))
	assert.Equal(t, img.UID, got.UID, "%s was made anew", img.Name)
	assert.Nil(t, got.DeletionTimestamp, "%s is being deleted", img.Name)
}

// createPlannedImages has the agent make images for a plan, and waits until they serve.
func createPlannedImages(t *testing.T, images ...*v1alpha1.VMDiskImage) (made []*v1alpha1.VMDiskImage) {
	t.Helper()
	setPlan(t, newPlan(t, nil, images...))
	for _, img := range images {
		made = append(made, awaitSucceeded(t, img))
	}
	return made
}

// createReferencingVM makes a machine that names an image, and goes when the test ends.
func createReferencingVM(t *testing.T, img *v1alpha1.VMDiskImage) *v1alpha1.VirtualMachine {
	t.Helper()
	vm := testenv.NewMachine(img.Namespace, "vm-"+img.Name, img)
	testScene.Create(t, vm)
	t.Cleanup(func() { assert.NoError(t, client.IgnoreNotFound(testScene.Client().Delete(context.Background(), vm))) })
	testScene.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.References.Count == 1 })
	return vm
}

// TestRetirementRemovesOnlyUnreferencedImages wants those to go, and only those, that a plan has had made,
// that it retires, and that nobody references.
func TestRetirementRemovesOnlyUnreferencedImages(t *testing.T) {
	testScene.SetPolicy(t, newPolicy())
	ns := createHomeNamespace(t)
	image := func(name string) *v1alpha1.VMDiskImage { return testScene.NewImage(ns, name, "/ok/100ms/"+name) }
	all := createPlannedImages(t, image("old"), image("held"), image("wanted"), image("kept"), image("later"), image("forgotten"), image("taken-back"))
	old, held, wanted, kept, later, forgotten, takenBack := all[0], all[1], all[2], all[3], all[4], all[5], all[6]
	theirs := image("theirs")
	testScene.Create(t, theirs)
	theirs = awaitSucceeded(t, theirs)
	testScene.Update(t, takenBack, func() { delete(takenBack.Labels, v1alpha1.LabelPlanned) })
	vm := createReferencingVM(t, held)

	p := withKept(newPlan(t, nil, wanted), kept)
	withRetirements(p, 0, old, held, wanted, kept, theirs, takenBack)
	setPlan(t, withRetirements(p, time.Hour, later))
	testScene.AwaitGone(t, old.DeepCopy())
	left := []*v1alpha1.VMDiskImage{held, wanted, kept, later, forgotten, theirs, takenBack}
	for _, img := range left { // each is looked at again, with the plan of by now
		testScene.Update(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "again"} })
		testScene.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.ObservedRetry == "again" })
		requireStays(t, img)
	}

	t.Run("once nobody references it", func(t *testing.T) {
		require.NoError(t, testScene.Client().Delete(t.Context(), vm))
		testScene.AwaitGone(t, held.DeepCopy())
		for _, img := range left[1:] {
			requireStays(t, img)
		}
	})
	t.Run("once it is no longer kept", func(t *testing.T) {
		setPlan(t, withRetirements(newPlan(t, nil, wanted), 0, kept))
		testScene.AwaitGone(t, kept.DeepCopy())
		for _, img := range []*v1alpha1.VMDiskImage{wanted, later, forgotten, theirs, takenBack} {
			requireStays(t, img)
		}
	})
	t.Run("once it is handed over", func(t *testing.T) {
		setPlan(t, withRetirements(newPlan(t, nil, wanted), 0, theirs))
		testScene.Update(t, theirs, func() { theirs.Labels = map[string]string{v1alpha1.LabelPlanned: "true"} })
		testScene.AwaitGone(t, theirs.DeepCopy())
		requireStays(t, wanted)
	})
	deletePlanAndAwait(t)
}

// TestPlanKeepsImagesBeyondTheirTTL wants the plan's word to count for more than the time that an
// image's own spec gives it, as long as the plan says so.
func TestPlanKeepsImagesBeyondTheirTTL(t *testing.T) {
	testScene.SetPolicy(t, newPolicy())
	ns := createHomeNamespace(t)
	img, goes := testScene.NewImage(ns, "image", "/ok/100ms/a"), testScene.NewImage(ns, "goes", "/ok/100ms/b")
	for _, one := range []*v1alpha1.VMDiskImage{img, goes} {
		one.Spec.DeleteUnreferencedAfter = &metav1.Duration{Duration: time.Hour}
	}
	setPlan(t, withKept(newPlan(t, nil), img))
	testScene.Create(t, img, goes)
	awaitSucceeded(t, img)
	awaitSucceeded(t, goes)
	// The hour is over for both of them.
	testScene.WithoutAgent(t, func() {
		for _, one := range []*v1alpha1.VMDiskImage{img, goes} {
			got := &v1alpha1.VMDiskImage{}
			require.NoError(t, testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(one), got))
			require.NotNil(t, got.Status.References.UnreferencedSince)
			got.Status.References.UnreferencedSince = &metav1.Time{Time: time.Now().Add(-2 * time.Hour)}
			require.NoError(t, testScene.Client().Status().Update(t.Context(), got))
		}
	})
	visit := func(retry string) {
		testScene.Update(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: retry} })
	}
	testScene.AwaitGone(t, goes.DeepCopy())
	visit("kept")
	got := testScene.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.ObservedRetry == "kept" })
	assert.Greater(t, time.Since(got.Status.References.UnreferencedSince.Time), time.Hour)
	requireStays(t, img)
	setPlan(t, newPlan(t, nil))
	visit("kept no more") // it comes to its turn once a minute by itself
	testScene.AwaitGone(t, img.DeepCopy())
	deletePlanAndAwait(t)
}

// TestRejectedPlanRetiresNothing has plans that may not be gone by retire what is
// in the cluster.
func TestRejectedPlanRetiresNothing(t *testing.T) {
	testScene.SetPolicy(t, newPolicy())
	ns := createHomeNamespace(t)
	img := createPlannedImages(t, testScene.NewImage(ns, "image", "/ok/100ms/a"))[0]
	acknowledged := newPlan(t, nil)
	setPlan(t, acknowledged) // it speaks of nothing

	older := withRetirements(newPlan(t, nil), 0, img)
	older.Spec.PlanVersion = acknowledged.Spec.PlanVersion
	older.Spec.Sequence--
	another := withRetirements(newPlan(t, nil), 0, img)
	another.Spec.ClusterUID = "another"
	for reason, p := range map[string]*v1alpha1.ClusterPlan{v1alpha1.ReasonPlanOlder: older, v1alpha1.ReasonPlanForAnotherCluster: another} {
		t.Run(reason, func(t *testing.T) {
			storePlan(t, p)
			testScene.AwaitLedgerCondition(t, v1alpha1.ConditionPlanAccepted, metav1.ConditionFalse, reason)
			testScene.Update(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: reason} })
			testScene.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.ObservedRetry == reason })
			requireStays(t, img)
		})
	}
	t.Run("and the next one does", func(t *testing.T) {
		setPlan(t, withRetirements(newPlan(t, nil), 0, img))
		testScene.AwaitGone(t, img.DeepCopy())
	})
	deletePlanAndAwait(t)
}

// TestRetirementSurvivesAgentCrashes kills the agent after every kind of step: what it
// has begun the next one ends, and a machine that came meanwhile keeps its image.
func TestRetirementSurvivesAgentCrashes(t *testing.T) {
	testScene.SetPolicy(t, newPolicy())
	ns := createHomeNamespace(t)
	all := createPlannedImages(t, testScene.NewImage(ns, "old", "/ok/100ms/a"), testScene.NewImage(ns, "held", "/ok/100ms/b"))
	old, held := all[0], all[1]
	testScene.WithoutAgent(t, func() {
		storePlan(t, withRetirements(newPlan(t, nil), 0, old, held))
		first, _ := startProxiedAgent(t)
		require.True(t, testenv.Await(t, func() bool { // the first step that can be seen
			got := &v1alpha1.VMDiskImage{}
			err := testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(old), got)
			return apierrors.IsNotFound(err) || (err == nil && got.DeletionTimestamp != nil)
		}))
		first.Kill()
		<-first.Done()
	})
	testScene.AwaitGone(t, old.DeepCopy())
	testScene.AwaitGone(t, held.DeepCopy())

	t.Run("a machine comes while no agent runs", func(t *testing.T) {
		held = createPlannedImages(t, testScene.NewImage(ns, "held", "/ok/100ms/b"))[0]
		vm := testenv.NewMachine(ns, "vm", held)
		testScene.WithoutAgent(t, func() {
			storePlan(t, withRetirements(newPlan(t, nil), 0, held))
			testScene.Create(t, vm)
		})
		testScene.AwaitImage(t, held, func(got *v1alpha1.VMDiskImage) bool { return got.Status.References.Count == 1 })
		requireStays(t, held)
		require.NoError(t, testScene.Client().Delete(t.Context(), vm))
		testScene.AwaitGone(t, held.DeepCopy())
	})
	deletePlanAndAwait(t)
}
