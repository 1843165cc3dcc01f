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
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// retiring adds to a plan that images are to go once nobody has referenced them
// for so long.
func retiring(p *v1alpha1.ClusterPlan, after time.Duration, images ...*v1alpha1.VMDiskImage) *v1alpha1.ClusterPlan {
	for _, img := range images {
		p.Spec.Retired = append(p.Spec.Retired, v1alpha1.RetiredImage{Namespace: img.Namespace, Name: img.Name, UnreferencedFor: metav1.Duration{Duration: after}})
	}
	return p
}

// keeping adds to a plan that images are to stay.
func keeping(p *v1alpha1.ClusterPlan, images ...*v1alpha1.VMDiskImage) *v1alpha1.ClusterPlan {
	for _, img := range images {
		p.Spec.Kept = append(p.Spec.Kept, v1alpha1.KeptImage{Namespace: img.Namespace, Name: img.Name})
	}
	return p
}

// stays wants an image to be there as it was, and not to be deleted.
func stays(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	got := &v1alpha1.VMDiskImage{}
	require.NoError(t, place.Client().Get(t.Context(), client.ObjectKeyFromObject(img), got))
	assert.Equal(t, img.UID, got.UID, "%s was made anew", img.Name)
	assert.Nil(t, got.DeletionTimestamp, "%s is being deleted", img.Name)
}

// planned has the agent make images for a plan, and waits until they serve.
func planned(t *testing.T, images ...*v1alpha1.VMDiskImage) (made []*v1alpha1.VMDiskImage) {
	t.Helper()
	setPlan(t, planOf(t, nil, images...))
	for _, img := range images {
		made = append(made, succeeded(t, img))
	}
	return made
}

// reference makes a machine that names an image, and goes when the test ends.
func reference(t *testing.T, img *v1alpha1.VMDiskImage) *v1alpha1.VirtualMachine {
	t.Helper()
	vm := scene.Machine(img.Namespace, "vm-"+img.Name, img)
	place.Create(t, vm)
	t.Cleanup(func() { assert.NoError(t, client.IgnoreNotFound(place.Client().Delete(context.Background(), vm))) })
	place.Eventually(t, img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.References.Count == 1 })
	return vm
}

// TestRetiredImages wants those to go, and only those, that a plan has had made,
// that it retires, and that nobody references.
func TestRetiredImages(t *testing.T) {
	place.SetPolicy(t, policy())
	ns := home(t)
	image := func(name string) *v1alpha1.VMDiskImage { return place.Image(ns, name, "/ok/100ms/"+name) }
	all := planned(t, image("old"), image("held"), image("wanted"), image("kept"), image("later"), image("forgotten"), image("taken-back"))
	old, held, wanted, kept, later, forgotten, takenBack := all[0], all[1], all[2], all[3], all[4], all[5], all[6]
	theirs := image("theirs")
	place.Create(t, theirs)
	theirs = succeeded(t, theirs)
	place.Change(t, takenBack, func() { delete(takenBack.Labels, v1alpha1.LabelPlanned) })
	vm := reference(t, held)

	p := keeping(planOf(t, nil, wanted), kept)
	retiring(p, 0, old, held, wanted, kept, theirs, takenBack)
	setPlan(t, retiring(p, time.Hour, later))
	place.Gone(t, old.DeepCopy())
	left := []*v1alpha1.VMDiskImage{held, wanted, kept, later, forgotten, theirs, takenBack}
	for _, img := range left { // each is looked at again, with the plan of by now
		place.Change(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "again"} })
		place.Eventually(t, img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.ObservedRetry == "again" })
		stays(t, img)
	}

	t.Run("once nobody references it", func(t *testing.T) {
		require.NoError(t, place.Client().Delete(t.Context(), vm))
		place.Gone(t, held.DeepCopy())
		for _, img := range left[1:] {
			stays(t, img)
		}
	})
	t.Run("once it is no longer kept", func(t *testing.T) {
		setPlan(t, retiring(planOf(t, nil, wanted), 0, kept))
		place.Gone(t, kept.DeepCopy())
		for _, img := range []*v1alpha1.VMDiskImage{wanted, later, forgotten, theirs, takenBack} {
			stays(t, img)
		}
	})
	t.Run("once it is handed over", func(t *testing.T) {
		setPlan(t, retiring(planOf(t, nil, wanted), 0, theirs))
		place.Change(t, theirs, func() { theirs.Labels = map[string]string{v1alpha1.LabelPlanned: "true"} })
		place.Gone(t, theirs.DeepCopy())
		stays(t, wanted)
	})
	withoutPlan(t)
}

// TestKeptImages wants the plan's word to count for more than the time that an
// image's own spec gives it, as long as the plan says so.
func TestKeptImages(t *testing.T) {
	place.SetPolicy(t, policy())
	ns := home(t)
	img, goes := place.Image(ns, "image", "/ok/100ms/a"), place.Image(ns, "goes", "/ok/100ms/b")
	for _, one := range []*v1alpha1.VMDiskImage{img, goes} {
		one.Spec.DeleteUnreferencedAfter = &metav1.Duration{Duration: time.Hour}
	}
	setPlan(t, keeping(planOf(t, nil), img))
	place.Create(t, img, goes)
	succeeded(t, img)
	succeeded(t, goes)
	// The hour is over for both of them.
	place.WithoutAgent(t, func() {
		for _, one := range []*v1alpha1.VMDiskImage{img, goes} {
			got := &v1alpha1.VMDiskImage{}
			require.NoError(t, place.Client().Get(t.Context(), client.ObjectKeyFromObject(one), got))
			require.NotNil(t, got.Status.References.UnreferencedSince)
			got.Status.References.UnreferencedSince = &metav1.Time{Time: time.Now().Add(-2 * time.Hour)}
			require.NoError(t, place.Client().Status().Update(t.Context(), got))
		}
	})
	visit := func(retry string) {
		place.Change(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: retry} })
	}
	place.Gone(t, goes.DeepCopy())
	visit("kept")
	got := place.Eventually(t, img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.ObservedRetry == "kept" })
	assert.Greater(t, time.Since(got.Status.References.UnreferencedSince.Time), time.Hour)
	stays(t, img)
	setPlan(t, planOf(t, nil))
	visit("kept no more") // it comes to its turn once a minute by itself
	place.Gone(t, img.DeepCopy())
	withoutPlan(t)
}

// TestRefusedPlanRetiresNothing has plans that may not be gone by retire what is
// in the cluster.
func TestRefusedPlanRetiresNothing(t *testing.T) {
	place.SetPolicy(t, policy())
	ns := home(t)
	img := planned(t, place.Image(ns, "image", "/ok/100ms/a"))[0]
	acknowledged := planOf(t, nil)
	setPlan(t, acknowledged) // it speaks of nothing

	older := retiring(planOf(t, nil), 0, img)
	older.Spec.PlanVersion = acknowledged.Spec.PlanVersion
	older.Spec.Sequence--
	another := retiring(planOf(t, nil), 0, img)
	another.Spec.ClusterUID = "another"
	for reason, p := range map[string]*v1alpha1.ClusterPlan{v1alpha1.ReasonPlanOlder: older, v1alpha1.ReasonPlanForAnother: another} {
		t.Run(reason, func(t *testing.T) {
			store(t, p)
			place.LedgerCondition(t, v1alpha1.ConditionPlanAccepted, metav1.ConditionFalse, reason)
			place.Change(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: reason} })
			place.Eventually(t, img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.ObservedRetry == reason })
			stays(t, img)
		})
	}
	t.Run("and the next one does", func(t *testing.T) {
		setPlan(t, retiring(planOf(t, nil), 0, img))
		place.Gone(t, img.DeepCopy())
	})
	withoutPlan(t)
}

// TestRetiredWhileTheAgentDies kills the agent after every kind of step: what it
// has begun the next one ends, and a machine that came meanwhile keeps its image.
func TestRetiredWhileTheAgentDies(t *testing.T) {
	place.SetPolicy(t, policy())
	ns := home(t)
	all := planned(t, place.Image(ns, "old", "/ok/100ms/a"), place.Image(ns, "held", "/ok/100ms/b"))
	old, held := all[0], all[1]
	place.WithoutAgent(t, func() {
		store(t, retiring(planOf(t, nil), 0, old, held))
		first, _ := proxied(t)
		require.True(t, scene.Await(t, func() bool { // the first step that can be seen
			got := &v1alpha1.VMDiskImage{}
			err := place.Client().Get(t.Context(), client.ObjectKeyFromObject(old), got)
			return apierrors.IsNotFound(err) || (err == nil && got.DeletionTimestamp != nil)
		}))
		first.Kill()
		<-first.Done()
	})
	place.Gone(t, old.DeepCopy())
	place.Gone(t, held.DeepCopy())

	t.Run("a machine comes while no agent runs", func(t *testing.T) {
		held = planned(t, place.Image(ns, "held", "/ok/100ms/b"))[0]
		vm := scene.Machine(ns, "vm", held)
		place.WithoutAgent(t, func() {
			store(t, retiring(planOf(t, nil), 0, held))
			place.Create(t, vm)
		})
		place.Eventually(t, held, func(got *v1alpha1.VMDiskImage) bool { return got.Status.References.Count == 1 })
		stays(t, held)
		require.NoError(t, place.Client().Delete(t.Context(), vm))
		place.Gone(t, held.DeepCopy())
	})
	withoutPlan(t)
}
