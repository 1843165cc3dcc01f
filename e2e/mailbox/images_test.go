//go:build linux

package mailbox

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// made waits until an image is there as the plan wants it.
func made(t *testing.T, want *v1alpha1.VMDiskImage) *v1alpha1.VMDiskImage {
	t.Helper()
	return place.Eventually(t, want, func(got *v1alpha1.VMDiskImage) bool {
		return got.Labels[v1alpha1.LabelPlanned] == "true" && assert.ObjectsAreEqual(want.Spec, got.Spec)
	})
}

// settled has the agent go through the whole plan once more.
func settled(t *testing.T, images ...*v1alpha1.VMDiskImage) {
	t.Helper()
	probe := place.Image(images[0].Namespace, "probe", "/ok/100ms/probe")
	p := planOf(t, nil, append(images, probe)...)
	setPlan(t, p)
	made(t, probe)
	wantItem(t, probe, v1alpha1.PlanItemApplied)
	require.NoError(t, client.IgnoreNotFound(place.Client().Delete(t.Context(), probe)))
}

func TestPlannedImages(t *testing.T) {
	place.SetPolicy(t, policy())
	ns := home(t)
	a, b := place.Image(ns, "a", "/ok/100ms/a"), place.Image(ns, "b", "/ok/100ms/b")
	a.Spec.Priority = 5
	setPlan(t, planOf(t, nil, a, b))
	for _, img := range []*v1alpha1.VMDiskImage{a, b} {
		made(t, img)
		succeeded(t, img)
		assert.Empty(t, wantItem(t, img, v1alpha1.PlanItemApplied))
	}
	first := made(t, a)

	t.Run("are changed with the plan", func(t *testing.T) {
		a.Spec.URL += "2"
		a.Spec.Priority = 0
		setPlan(t, planOf(t, nil, a, b))
		got := made(t, a)
		assert.Equal(t, first.UID, got.UID)
		owners := map[string]metav1.ManagedFieldsOperationType{}
		for _, f := range got.ManagedFields {
			if f.Manager == "ot-plan" {
				owners[f.Manager] = f.Operation
			}
		}
		assert.Equal(t, map[string]metav1.ManagedFieldsOperationType{"ot-plan": metav1.ManagedFieldsOperationApply}, owners)
	})
	t.Run("are put right after somebody has changed them", func(t *testing.T) {
		got := made(t, a)
		place.Change(t, got, func() { got.Spec.DiskSize = resource.MustParse("2Gi") })
		made(t, a)
	})
	t.Run("keep what the plan does not speak of", func(t *testing.T) {
		got := made(t, a)
		place.Change(t, got, func() { got.Spec.Priority = 3; got.Annotations = map[string]string{"theirs": "stays"} })
		settled(t, a, b)
		after := &v1alpha1.VMDiskImage{}
		require.NoError(t, place.Client().Get(t.Context(), client.ObjectKeyFromObject(a), after))
		assert.EqualValues(t, 3, after.Spec.Priority)
		assert.Equal(t, "stays", after.Annotations["theirs"])
		assert.Equal(t, got.Generation, after.Generation)
	})
	t.Run("are made again when they are deleted", func(t *testing.T) {
		uid := made(t, b).UID
		require.NoError(t, place.Client().Delete(t.Context(), b.DeepCopy()))
		require.NotEqual(t, uid, place.Eventually(t, b, func(got *v1alpha1.VMDiskImage) bool { return got.UID != uid }).UID)
		made(t, b)
		wantItem(t, b, v1alpha1.PlanItemApplied)
	})
	t.Run("stay when the plan names them no more", func(t *testing.T) {
		uid := made(t, b).UID
		settled(t, a)
		assert.Equal(t, uid, made(t, b).UID)
		withoutPlan(t)
		assert.Equal(t, uid, made(t, b).UID)
	})
}

// untouched is what an image looks like that nobody but people, and the agent
// that syncs it, has changed.
func untouched(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	got := &v1alpha1.VMDiskImage{}
	require.NoError(t, place.Client().Get(t.Context(), client.ObjectKeyFromObject(img), got))
	assert.Equal(t, img.UID, got.UID)
	assert.Equal(t, img.Generation, got.Generation)
	assert.Equal(t, img.Spec, got.Spec)
	assert.Empty(t, got.Labels)
	for _, f := range got.ManagedFields {
		assert.NotEqual(t, "ot-plan", f.Manager)
	}
}

func TestPeoplesImagesAreNotTouched(t *testing.T) {
	place.SetPolicy(t, policy())
	ns := home(t)
	theirs, same := place.Image(ns, "theirs", "/ok/100ms/theirs"), place.Image(ns, "same", "/ok/100ms/same")
	wanted, wantedSame := place.Image(ns, "theirs", "/ok/100ms/ours"), same.DeepCopy()
	place.Create(t, theirs, same)
	setPlan(t, planOf(t, nil, wanted, wantedSame))
	for _, img := range []*v1alpha1.VMDiskImage{theirs, same} {
		assert.Contains(t, wantItem(t, img, v1alpha1.PlanItemNotOurs), "was made by somebody else")
		settled(t, wanted, wantedSame)
		untouched(t, img)
	}

	t.Run("until they hand it over", func(t *testing.T) {
		place.Change(t, theirs, func() { theirs.Labels = map[string]string{v1alpha1.LabelPlanned: "true"} })
		made(t, wanted)
		wantItem(t, wanted, v1alpha1.PlanItemApplied)
	})
	t.Run("and when they take it back", func(t *testing.T) {
		place.Change(t, theirs, func() { theirs.Labels = nil; theirs.Spec.URL += "-back" })
		wantItem(t, theirs, v1alpha1.PlanItemNotOurs)
		settled(t, wanted)
		got := &v1alpha1.VMDiskImage{}
		require.NoError(t, place.Client().Get(t.Context(), client.ObjectKeyFromObject(theirs), got))
		assert.Equal(t, theirs.Spec, got.Spec)
	})
	withoutPlan(t)
}

// TestPeoplesImagesThatTheCacheDoesNotShow has an agent that knows of no image
// yet: what people have made meanwhile is theirs all the same.
func TestPeoplesImagesThatTheCacheDoesNotShow(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "0"))
	ns := home(t)
	withoutPlan(t)
	place.WithoutAgent(t, func() {
		blind, p := proxied(t)
		place.SetPolicy(t, policy("concurrency", "0", "retryLimit", "5")) // it runs
		p.HoldWatches("vmdiskimages")
		theirs, same := place.Image(ns, "theirs", "/ok/100ms/theirs"), place.Image(ns, "same", "/ok/100ms/same")
		wanted, wantedSame := place.Image(ns, "theirs", "/ok/100ms/ours"), same.DeepCopy()
		place.Create(t, theirs, same)
		probe := place.Image(ns, "probe", "/ok/100ms/probe")
		setPlan(t, planOf(t, nil, wanted, wantedSame, probe))
		made(t, probe) // it comes last
		untouched(t, theirs)
		untouched(t, same)
		blind.Kill()
		<-blind.Done()
	})
	withoutPlan(t)
}

// TestPlanThatTheCacheDoesNotShow has an agent that sees an older plan: it makes
// what the newer one names, and nothing that only the older one does.
func TestPlanThatTheCacheDoesNotShow(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "0"))
	ns := home(t)
	withoutPlan(t)
	place.WithoutAgent(t, func() {
		blind, p := proxied(t)
		former, later := place.Image(ns, "former", "/ok/100ms/former"), place.Image(ns, "later", "/ok/100ms/later")
		setPlan(t, planOf(t, nil, former))
		first := made(t, former)
		p.HoldWatches("clusterplans", "syncledgers")
		store(t, planOf(t, nil, later))
		require.NoError(t, place.Client().Delete(t.Context(), first))
		made(t, later)
		place.Gone(t, first)
		blind.Kill()
		<-blind.Done()
	})
	withoutPlan(t)
}

func TestPlannedImageThatIsRejected(t *testing.T) {
	place.SetPolicy(t, policy())
	ns := home(t)
	bad, good := place.Image(ns, "bad", "/ok/100ms/a"), place.Image(ns, "good", "/ok/100ms/a")
	bad.Spec.URL = "ftp://nowhere/a"
	setPlan(t, planOf(t, nil, bad, good))
	made(t, good)
	assert.Contains(t, wantItem(t, bad, v1alpha1.PlanItemRejected), "url must start with http:// or https://")
	assert.True(t, apierrors.IsNotFound(place.Client().Get(t.Context(), client.ObjectKeyFromObject(bad), bad.DeepCopy())))

	t.Run("the next plan is tried at once", func(t *testing.T) {
		bad.Spec.URL = place.Source.URL + "/ok/100ms/a"
		setPlan(t, planOf(t, nil, bad, good))
		made(t, bad)
		wantItem(t, bad, v1alpha1.PlanItemApplied)
	})
	t.Run("one that is there stays as it was", func(t *testing.T) {
		was := made(t, bad)
		worse := bad.DeepCopy()
		worse.Spec.URL = "ftp://nowhere/a"
		setPlan(t, planOf(t, nil, worse, good))
		wantItem(t, worse, v1alpha1.PlanItemRejected)
		assert.Equal(t, was.UID, made(t, bad).UID)
	})
	withoutPlan(t)
}

func TestPlannedImageWithoutANamespace(t *testing.T) {
	place.SetPolicy(t, policy())
	const ns = "comes-later"
	img := place.Image(ns, "image", "/ok/100ms/a")
	other := place.Image(home(t), "other", "/ok/100ms/a")
	setPlan(t, planOf(t, nil, img, other))
	made(t, other)
	assert.Contains(t, wantItem(t, img, v1alpha1.PlanItemWaiting), "namespace comes-later does not exist: create it")
	place.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	made(t, img)
	succeeded(t, img)
	wantItem(t, img, v1alpha1.PlanItemApplied)
	require.NoError(t, place.Client().Delete(t.Context(), plan()))
	require.NoError(t, client.IgnoreNotFound(place.Client().Delete(t.Context(), img)))
	require.True(t, scene.Await(t, func() bool {
		return apierrors.IsNotFound(place.Client().Get(t.Context(), client.ObjectKeyFromObject(img), img))
	}))
	withoutPlan(t)
}
