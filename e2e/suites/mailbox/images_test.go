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
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// awaitPlannedImage waits until an image is there as the plan wants it.
func awaitPlannedImage(t *testing.T, want *v1alpha1.VMDiskImage) *v1alpha1.VMDiskImage {
	t.Helper()
	return testScene.AwaitImage(t, want, func(got *v1alpha1.VMDiskImage) bool {
		return got.Labels[v1alpha1.LabelPlanned] == "true" && assert.ObjectsAreEqual(want.Spec, got.Spec)
	})
}

// awaitPlanProcessed has the agent go through the whole plan once more.
func awaitPlanProcessed(t *testing.T, images ...*v1alpha1.VMDiskImage) {
	t.Helper()
	probe := testScene.NewImage(images[0].Namespace, "probe", "/ok/100ms/probe")
	p := newPlan(t, nil, append(images, probe)...)
	setPlan(t, p)
	awaitPlannedImage(t, probe)
	awaitPlanItem(t, probe, v1alpha1.PlanItemApplied)
	require.NoError(t, client.IgnoreNotFound(testScene.Client().Delete(t.Context(), probe)))
}

func TestPlanCreatesImages(t *testing.T) {
	testScene.SetPolicy(t, newPolicy())
	ns := createHomeNamespace(t)
	a, b := testScene.NewImage(ns, "a", "/ok/100ms/a"), testScene.NewImage(ns, "b", "/ok/100ms/b")
	a.Spec.Priority = 5
	setPlan(t, newPlan(t, nil, a, b))
	for _, img := range []*v1alpha1.VMDiskImage{a, b} {
		awaitPlannedImage(t, img)
		awaitSucceeded(t, img)
		assert.Empty(t, awaitPlanItem(t, img, v1alpha1.PlanItemApplied))
	}
	first := awaitPlannedImage(t, a)

	t.Run("are changed with the plan", func(t *testing.T) {
		a.Spec.URL += "2"
		a.Spec.Priority = 0
		setPlan(t, newPlan(t, nil, a, b))
		got := awaitPlannedImage(t, a)
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
		got := awaitPlannedImage(t, a)
		testScene.Update(t, got, func() { got.Spec.DiskSize = resource.MustParse("2Gi") })
		awaitPlannedImage(t, a)
	})
	t.Run("keep what the plan does not speak of", func(t *testing.T) {
		got := awaitPlannedImage(t, a)
		testScene.Update(t, got, func() { got.Spec.Priority = 3; got.Annotations = map[string]string{"theirs": "stays"} })
		awaitPlanProcessed(t, a, b)
		after := &v1alpha1.VMDiskImage{}
		require.NoError(t, testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(a), after))
		assert.EqualValues(t, 3, after.Spec.Priority)
		assert.Equal(t, "stays", after.Annotations["theirs"])
		assert.Equal(t, got.Generation, after.Generation)
	})
	t.Run("are made again when they are deleted", func(t *testing.T) {
		uid := awaitPlannedImage(t, b).UID
		require.NoError(t, testScene.Client().Delete(t.Context(), b.DeepCopy()))
		require.NotEqual(t, uid, testScene.AwaitImage(t, b, func(got *v1alpha1.VMDiskImage) bool { return got.UID != uid }).UID)
		awaitPlannedImage(t, b)
		awaitPlanItem(t, b, v1alpha1.PlanItemApplied)
	})
	t.Run("stay when the plan names them no more", func(t *testing.T) {
		uid := awaitPlannedImage(t, b).UID
		awaitPlanProcessed(t, a)
		assert.Equal(t, uid, awaitPlannedImage(t, b).UID)
		deletePlanAndAwait(t)
		assert.Equal(t, uid, awaitPlannedImage(t, b).UID)
	})
}

// snapshotUntouched is what an image looks like that nobody but people, and the agent
// that syncs it, has changed.
func snapshotUntouched(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	got := &v1alpha1.VMDiskImage{}
	require.NoError(t, testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(img), got))
	assert.Equal(t, img.UID, got.UID)
	assert.Equal(t, img.Generation, got.Generation)
	assert.Equal(t, img.Spec, got.Spec)
	assert.Empty(t, got.Labels)
	for _, f := range got.ManagedFields {
		assert.NotEqual(t, "ot-plan", f.Manager)
	}
}

func TestForeignImagesAreNotTouched(t *testing.T) {
	testScene.SetPolicy(t, newPolicy())
	ns := createHomeNamespace(t)
	theirs, same := testScene.NewImage(ns, "theirs", "/ok/100ms/theirs"), testScene.NewImage(ns, "same", "/ok/100ms/same")
	wanted, wantedSame := testScene.NewImage(ns, "theirs", "/ok/100ms/ours"), same.DeepCopy()
	testScene.Create(t, theirs, same)
	setPlan(t, newPlan(t, nil, wanted, wantedSame))
	for _, img := range []*v1alpha1.VMDiskImage{theirs, same} {
		assert.Contains(t, awaitPlanItem(t, img, v1alpha1.PlanItemNotOurs), "was made by somebody else")
		awaitPlanProcessed(t, wanted, wantedSame)
		snapshotUntouched(t, img)
	}

	t.Run("until they hand it over", func(t *testing.T) {
		testScene.Update(t, theirs, func() { theirs.Labels = map[string]string{v1alpha1.LabelPlanned: "true"} })
		awaitPlannedImage(t, wanted)
		awaitPlanItem(t, wanted, v1alpha1.PlanItemApplied)
	})
	t.Run("and when they take it back", func(t *testing.T) {
		testScene.Update(t, theirs, func() { theirs.Labels = nil; theirs.Spec.URL += "-back" })
		awaitPlanItem(t, theirs, v1alpha1.PlanItemNotOurs)
		awaitPlanProcessed(t, wanted)
		got := &v1alpha1.VMDiskImage{}
		require.NoError(t, testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(theirs), got))
		assert.Equal(t, theirs.Spec, got.Spec)
	})
	deletePlanAndAwait(t)
}

// TestForeignImagesMissingFromTheCache has an agent that knows of no image
// yet: what people have made meanwhile is theirs all the same.
func TestForeignImagesMissingFromTheCache(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "0"))
	ns := createHomeNamespace(t)
	deletePlanAndAwait(t)
	testScene.WithoutAgent(t, func() {
		blind, p := startProxiedAgent(t)
		testScene.SetPolicy(t, newPolicy("concurrency", "0", "retryLimit", "5")) // it runs
		p.HoldWatches("vmdiskimages")
		theirs, same := testScene.NewImage(ns, "theirs", "/ok/100ms/theirs"), testScene.NewImage(ns, "same", "/ok/100ms/same")
		wanted, wantedSame := testScene.NewImage(ns, "theirs", "/ok/100ms/ours"), same.DeepCopy()
		testScene.Create(t, theirs, same)
		probe := testScene.NewImage(ns, "probe", "/ok/100ms/probe")
		setPlan(t, newPlan(t, nil, wanted, wantedSame, probe))
		awaitPlannedImage(t, probe) // it comes last
		snapshotUntouched(t, theirs)
		snapshotUntouched(t, same)
		blind.Kill()
		<-blind.Done()
	})
	deletePlanAndAwait(t)
}

// TestStalePlanCache has an agent that sees an older plan: it makes
// what the newer one names, and nothing that only the older one does.
func TestStalePlanCache(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "0"))
	ns := createHomeNamespace(t)
	deletePlanAndAwait(t)
	testScene.WithoutAgent(t, func() {
		blind, p := startProxiedAgent(t)
		former, later := testScene.NewImage(ns, "former", "/ok/100ms/former"), testScene.NewImage(ns, "later", "/ok/100ms/later")
		setPlan(t, newPlan(t, nil, former))
		first := awaitPlannedImage(t, former)
		p.HoldWatches("clusterplans", "syncledgers")
		storePlan(t, newPlan(t, nil, later))
		require.NoError(t, testScene.Client().Delete(t.Context(), first))
		awaitPlannedImage(t, later)
		testScene.AwaitGone(t, first)
		blind.Kill()
		<-blind.Done()
	})
	deletePlanAndAwait(t)
}

func TestRejectedPlannedImage(t *testing.T) {
	testScene.SetPolicy(t, newPolicy())
	ns := createHomeNamespace(t)
	bad, good := testScene.NewImage(ns, "bad", "/ok/100ms/a"), testScene.NewImage(ns, "good", "/ok/100ms/a")
	bad.Spec.URL = "ftp://nowhere/a"
	setPlan(t, newPlan(t, nil, bad, good))
	awaitPlannedImage(t, good)
	assert.Contains(t, awaitPlanItem(t, bad, v1alpha1.PlanItemRejected), "url must start with http:// or https://")
	assert.True(t, apierrors.IsNotFound(testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(bad), bad.DeepCopy())))

	t.Run("the next plan is tried at once", func(t *testing.T) {
		bad.Spec.URL = testScene.Source.URL + "/ok/100ms/a"
		setPlan(t, newPlan(t, nil, bad, good))
		awaitPlannedImage(t, bad)
		awaitPlanItem(t, bad, v1alpha1.PlanItemApplied)
	})
	t.Run("one that is there stays as it was", func(t *testing.T) {
		was := awaitPlannedImage(t, bad)
		worse := bad.DeepCopy()
		worse.Spec.URL = "ftp://nowhere/a"
		setPlan(t, newPlan(t, nil, worse, good))
		awaitPlanItem(t, worse, v1alpha1.PlanItemRejected)
		assert.Equal(t, was.UID, awaitPlannedImage(t, bad).UID)
	})
	deletePlanAndAwait(t)
}

func TestPlannedImageWithoutNamespace(t *testing.T) {
	testScene.SetPolicy(t, newPolicy())
	const ns = "comes-later"
	img := testScene.NewImage(ns, "image", "/ok/100ms/a")
	other := testScene.NewImage(createHomeNamespace(t), "other", "/ok/100ms/a")
	setPlan(t, newPlan(t, nil, img, other))
	awaitPlannedImage(t, other)
	assert.Contains(t, awaitPlanItem(t, img, v1alpha1.PlanItemWaiting), "namespace comes-later does not exist: create it")
	testScene.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	awaitPlannedImage(t, img)
	awaitSucceeded(t, img)
	awaitPlanItem(t, img, v1alpha1.PlanItemApplied)
	require.NoError(t, testScene.Client().Delete(t.Context(), emptyPlan()))
	require.NoError(t, client.IgnoreNotFound(testScene.Client().Delete(t.Context(), img)))
	require.True(t, testenv.Await(t, func() bool {
		return apierrors.IsNotFound(testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(img), img))
	}))
	deletePlanAndAwait(t)
}
