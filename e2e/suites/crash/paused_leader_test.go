//go:build linux

package crash

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func newPolicy(concurrency string) map[string]string {
	return map[string]string{"concurrency": concurrency, "retryLimit": "1", "retryBackoffDuration": "1s"}
}

func addsSlot(w faults.Write) bool {
	resource, _, status := w.Target()
	return resource == "syncledgers" && status && len(decodeSlots(w.Body)) > 0
}

func isOutcomeWrite(o v1alpha1.Outcome) func(faults.Write) bool {
	return func(w faults.Write) bool {
		return faults.MatchWrite(http.MethodPut, "vmdiskimages", true)(w) && strings.Contains(string(w.Body), `"outcome":"`+string(o)+`"`)
	}
}

func TestPausedBeforeSlotWrite(t *testing.T) {
	testScene.StorePolicy(t, newPolicy("1"))
	ns, o := testScene.CreateNamespace(t), testScene.StartObserver(t)
	a := faults.FreezeLeaderAt(t, testScene, addsSlot)
	first, second := testScene.NewImage(ns, "first", "/ok/first.qcow2"), testScene.NewImage(ns, "second", "/hang/second.qcow2")
	testScene.Create(t, first)
	a.AwaitFrozen(t)
	b := a.StartSuccessor(t)
	testScene.AwaitImage(t, first, testenv.InPhase(v1alpha1.PhaseSucceeded))
	// The one slot is taken: what A meant to store would be one too many.
	testScene.Create(t, second)
	testScene.AwaitImage(t, second, testenv.InPhase(v1alpha1.PhaseSyncing))

	assert.Equal(t, http.StatusConflict, a.ReleaseWrite(t), "a slot stored against an old resourceVersion")
	slots := testScene.Ledger(t).Status.Slots
	require.Len(t, slots, 1)
	assert.Equal(t, second.UID, slots[0].Image.UID)
	h := requirePromisesKept(t, o)
	assert.Equal(t, 1, h.Attempts(first.UID))
	requireDeleted(t, b, ns, first, second)
}

// The DataVolume of a slot reaches the API server when another leader has
// created it, seen it through, freed the slot, and the image is gone.
func TestPausedBeforeCreateOfFreedSlot(t *testing.T) {
	testScene.StorePolicy(t, newPolicy("1"))
	ns, o := testScene.CreateNamespace(t), testScene.StartObserver(t)
	a := faults.FreezeLeaderAt(t, testScene, faults.MatchWrite(http.MethodPost, "datavolumes", false))
	first, second := testScene.NewImage(ns, "first", "/ok/first.qcow2"), testScene.NewImage(ns, "second", "/hang/second.qcow2")
	testScene.Create(t, first)
	a.AwaitFrozen(t)
	b := a.StartSuccessor(t)
	testScene.AwaitImage(t, first, testenv.InPhase(v1alpha1.PhaseSucceeded))
	requireDeleted(t, b, ns, first)
	testScene.Create(t, second)
	testScene.AwaitImage(t, second, testenv.InPhase(v1alpha1.PhaseSyncing))

	assert.Equal(t, http.StatusForbidden, a.ReleaseWrite(t), "a DataVolume that has no slot any more")
	h := requirePromisesKept(t, o)
	assert.Equal(t, 1, h.Attempts(first.UID))
	requireDeleted(t, b, ns, second)
}

// The same with an attempt that has failed and whose slot is not free yet, since
// something of it is left.
func TestPausedBeforeCreateOfEndedAttempt(t *testing.T) {
	testScene.StorePolicy(t, newPolicy("1"))
	ns, o := testScene.CreateNamespace(t), testScene.StartObserver(t)
	a := faults.FreezeLeaderAt(t, testScene, faults.MatchWrite(http.MethodPost, "datavolumes", false))
	fails := testScene.NewImage(ns, "fails", "/servererror/5s/fails.qcow2")
	testScene.Create(t, fails)
	a.AwaitFrozen(t)
	b := a.StartSuccessor(t)

	const keep = "crash.pelotech.ot/keep"
	var kept *corev1.PersistentVolumeClaim
	require.True(t, testenv.Await(t, func() bool {
		for _, c := range listChildren(t, ns) {
			if claim, ok := asClaim(c); ok && controllerutil.AddFinalizer(claim, keep) {
				kept = claim
				return testScene.Client().Update(t.Context(), claim) == nil
			}
		}
		return false
	}), "no claim was made")
	require.True(t, testenv.Await(t, func() bool {
		dvs := 0
		for _, c := range listChildren(t, ns) {
			if isDataVolume(c) {
				dvs++
			}
		}
		slots := testScene.Ledger(t).Status.Slots
		return dvs == 0 && len(slots) == 1 && slots[0].Ended
	}), "the failed attempt is not removed, or its slot is not kept: %+v", testScene.Ledger(t).Status.Slots)

	assert.Equal(t, http.StatusForbidden, a.ReleaseWrite(t), "the DataVolume of an attempt that has ended")
	requirePromisesKept(t, o)
	testScene.Update(t, kept, func() { controllerutil.RemoveFinalizer(kept, keep) })
	testScene.AwaitImage(t, fails, testenv.InPhase(v1alpha1.PhaseFailed))
	h := requirePromisesKept(t, o)
	assert.Equal(t, 2, h.Attempts(fails.UID), "retryLimit + 1")
	requireDeleted(t, b, ns, fails)
}

func TestPausedBeforeOutcomeWrite(t *testing.T) {
	for name, test := range map[string]struct {
		path    string
		outcome v1alpha1.Outcome
		want    int
	}{
		"success": {"/ok/i.qcow2", v1alpha1.OutcomeSucceeded, 1},
		"failure": {"/flaky/1/i.qcow2", v1alpha1.OutcomeFailed, 2},
	} {
		t.Run(name, func(t *testing.T) {
			testScene.StorePolicy(t, newPolicy("1"))
			ns, o := testScene.CreateNamespace(t), testScene.StartObserver(t)
			a := faults.FreezeLeaderAt(t, testScene, isOutcomeWrite(test.outcome))
			img := testScene.NewImage(ns, "image", test.path)
			testScene.Create(t, img)
			a.AwaitFrozen(t)
			b := a.StartSuccessor(t)
			want := testScene.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))

			assert.Equal(t, http.StatusConflict, a.ReleaseWrite(t), "an outcome stored against an old resourceVersion")
			got := testScene.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
			assert.Equal(t, want.Status, got.Status)
			h := requirePromisesKept(t, o)
			assert.Equal(t, test.want, h.Attempts(img.UID))
			requireDeleted(t, b, ns, img)
		})
	}
}

func TestPausedBeforeDataVolumeDelete(t *testing.T) {
	testScene.StorePolicy(t, newPolicy("1"))
	ns, o := testScene.CreateNamespace(t), testScene.StartObserver(t)
	a := faults.FreezeLeaderAt(t, testScene, faults.MatchWrite(http.MethodDelete, "datavolumes", false))
	img := testScene.NewImage(ns, "image", "/flaky/1/i.qcow2")
	testScene.Create(t, img)
	a.AwaitFrozen(t)
	b := a.StartSuccessor(t)
	testScene.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))

	assert.Equal(t, http.StatusNotFound, a.ReleaseWrite(t), "a DataVolume that is gone")
	testScene.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
	h := requirePromisesKept(t, o)
	assert.Equal(t, 2, h.Attempts(img.UID))
	requireDeleted(t, b, ns, img)
}

// An image of the same name has been made meanwhile: it keeps its finalizer.
func TestPausedBeforeFinalizerRemoval(t *testing.T) {
	testScene.StorePolicy(t, newPolicy("1"))
	ns, o := testScene.CreateNamespace(t), testScene.StartObserver(t)
	a := faults.FreezeLeaderAt(t, testScene, func(w faults.Write) bool {
		return faults.MatchWrite(http.MethodPatch, "vmdiskimages", false)(w) && !strings.Contains(string(w.Body), v1alpha1.FinalizerImage)
	})
	img := testScene.NewImage(ns, "image", "/ok/i.qcow2")
	testScene.Create(t, img)
	testScene.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
	require.NoError(t, testScene.Client().Delete(t.Context(), img.DeepCopy()))
	a.AwaitFrozen(t)
	b := a.StartSuccessor(t)
	testScene.AwaitGone(t, img.DeepCopy())
	again := testScene.NewImage(ns, "image", "/ok/i.qcow2")
	testScene.Create(t, again)
	testScene.AwaitImage(t, again, testenv.InPhase(v1alpha1.PhaseSucceeded))

	assert.Equal(t, http.StatusConflict, a.ReleaseWrite(t), "the finalizer of another image of that name")
	got := testScene.AwaitImage(t, again, testenv.InPhase(v1alpha1.PhaseSucceeded))
	assert.Contains(t, got.Finalizers, v1alpha1.FinalizerImage)
	h := requirePromisesKept(t, o)
	assert.Equal(t, 1, h.Attempts(again.UID))
	requireDeleted(t, b, ns, again)
}

// A snapshot reaches the API server when another leader has made one of its own,
// and then when the image is gone.
func TestPausedBeforeSnapshotCreate(t *testing.T) {
	testScene.StorePolicy(t, newPolicy("1"))
	for _, deleted := range []bool{false, true} {
		ns, o := testScene.CreateNamespace(t), testScene.StartObserver(t)
		a := faults.FreezeLeaderAt(t, testScene, faults.MatchWrite(http.MethodPost, "volumesnapshots", false))
		img := testScene.NewSnapshottedImage(ns, "image", "/ok/i.qcow2")
		testScene.Create(t, img)
		a.AwaitFrozen(t)
		b := a.StartSuccessor(t)
		testScene.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
		if deleted {
			requireDeleted(t, b, ns, img)
		}
		a.ReleaseWrite(t)
		if !deleted {
			require.True(t, testenv.Await(t, func() bool { return len(listChildren(t, ns)) == 3 }), "DataVolume, claim and one snapshot are wanted: %v", listChildren(t, ns))
		}
		requireNothingLeft(t, ns)
		requirePromisesKept(t, o)
		if !deleted {
			requireDeleted(t, b, ns, img)
		}
		b.KillAndWait()
	}
}

// requireDeleted deletes images and wants nothing of them to stay.
func requireDeleted(t *testing.T, leads *faults.FaultyAgent, namespace string, images ...*v1alpha1.VMDiskImage) {
	t.Helper()
	require.False(t, leads.HasEnded(), "the agent that is to delete them has ended")
	for _, img := range images {
		require.NoError(t, testScene.Client().Delete(t.Context(), img.DeepCopy()))
	}
	for _, img := range images {
		require.True(t, testenv.Await(t, func() bool {
			return apierrors.IsNotFound(testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(img), &v1alpha1.VMDiskImage{}))
		}), "%s is still there", img.Name)
	}
	requireNothingLeft(t, namespace)
}
