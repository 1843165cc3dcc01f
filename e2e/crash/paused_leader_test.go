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
	"github.com/pelotech/ot-fleet/e2e/mortal"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

func policyOf(concurrency string) map[string]string {
	return map[string]string{"concurrency": concurrency, "retryLimit": "1", "retryBackoffDuration": "1s"}
}

func admits(w proxy.Write) bool {
	resource, _, status := w.Target()
	return resource == "syncledgers" && status && len(slotsOf(w.Body)) > 0
}

func storesOutcome(o v1alpha1.Outcome) func(proxy.Write) bool {
	return func(w proxy.Write) bool {
		return proxy.To(http.MethodPut, "vmdiskimages", true)(w) && strings.Contains(string(w.Body), `"outcome":"`+string(o)+`"`)
	}
}

func TestPausedBeforeItStoresASlot(t *testing.T) {
	place.StorePolicy(t, policyOf("1"))
	ns, o := place.Namespace(t), place.Observe(t)
	a := mortal.Hold(t, place, admits)
	first, second := place.Image(ns, "first", "/ok/first.qcow2"), place.Image(ns, "second", "/hang/second.qcow2")
	place.Create(t, first)
	a.AwaitStopped(t)
	b := a.Next(t)
	place.Eventually(t, first, scene.InPhase(v1alpha1.PhaseSucceeded))
	// The one slot is taken: what A meant to store would be one too many.
	place.Create(t, second)
	place.Eventually(t, second, scene.InPhase(v1alpha1.PhaseSyncing))

	assert.Equal(t, http.StatusConflict, a.LetGo(t), "a slot stored against an old resourceVersion")
	slots := place.Ledger(t).Status.Slots
	require.Len(t, slots, 1)
	assert.Equal(t, second.UID, slots[0].Image.UID)
	h := wantPromisesKept(t, o)
	assert.Equal(t, 1, h.Attempts(first.UID))
	wantDeleted(t, b, ns, first, second)
}

// The DataVolume of a slot reaches the API server when another leader has
// created it, seen it through, freed the slot, and the image is gone.
func TestPausedBeforeItCreatesADataVolumeWhoseSlotIsFreed(t *testing.T) {
	place.StorePolicy(t, policyOf("1"))
	ns, o := place.Namespace(t), place.Observe(t)
	a := mortal.Hold(t, place, proxy.To(http.MethodPost, "datavolumes", false))
	first, second := place.Image(ns, "first", "/ok/first.qcow2"), place.Image(ns, "second", "/hang/second.qcow2")
	place.Create(t, first)
	a.AwaitStopped(t)
	b := a.Next(t)
	place.Eventually(t, first, scene.InPhase(v1alpha1.PhaseSucceeded))
	wantDeleted(t, b, ns, first)
	place.Create(t, second)
	place.Eventually(t, second, scene.InPhase(v1alpha1.PhaseSyncing))

	assert.Equal(t, http.StatusForbidden, a.LetGo(t), "a DataVolume that has no slot any more")
	h := wantPromisesKept(t, o)
	assert.Equal(t, 1, h.Attempts(first.UID))
	wantDeleted(t, b, ns, second)
}

// The same with an attempt that has failed and whose slot is not free yet, since
// something of it is left.
func TestPausedBeforeItCreatesADataVolumeWhoseAttemptHasEnded(t *testing.T) {
	place.StorePolicy(t, policyOf("1"))
	ns, o := place.Namespace(t), place.Observe(t)
	a := mortal.Hold(t, place, proxy.To(http.MethodPost, "datavolumes", false))
	fails := place.Image(ns, "fails", "/servererror/5s/fails.qcow2")
	place.Create(t, fails)
	a.AwaitStopped(t)
	b := a.Next(t)

	const keep = "crash.pelotech.ot/keep"
	var kept *corev1.PersistentVolumeClaim
	require.True(t, scene.Await(t, func() bool {
		for _, c := range children(t, ns) {
			if claim, is := claimOf(c); is && controllerutil.AddFinalizer(claim, keep) {
				kept = claim
				return place.Client().Update(t.Context(), claim) == nil
			}
		}
		return false
	}), "no claim was made")
	require.True(t, scene.Await(t, func() bool {
		dvs := 0
		for _, c := range children(t, ns) {
			if isDataVolume(c) {
				dvs++
			}
		}
		slots := place.Ledger(t).Status.Slots
		return dvs == 0 && len(slots) == 1 && slots[0].Ended
	}), "the failed attempt is not removed, or its slot is not kept: %+v", place.Ledger(t).Status.Slots)

	assert.Equal(t, http.StatusForbidden, a.LetGo(t), "the DataVolume of an attempt that has ended")
	wantPromisesKept(t, o)
	place.Change(t, kept, func() { controllerutil.RemoveFinalizer(kept, keep) })
	place.Eventually(t, fails, scene.InPhase(v1alpha1.PhaseFailed))
	h := wantPromisesKept(t, o)
	assert.Equal(t, 2, h.Attempts(fails.UID), "retryLimit + 1")
	wantDeleted(t, b, ns, fails)
}

func TestPausedBeforeItStoresAnOutcome(t *testing.T) {
	for name, test := range map[string]struct {
		path    string
		outcome v1alpha1.Outcome
		want    int
	}{
		"success": {"/ok/i.qcow2", v1alpha1.OutcomeSucceeded, 1},
		"failure": {"/flaky/1/i.qcow2", v1alpha1.OutcomeFailed, 2},
	} {
		t.Run(name, func(t *testing.T) {
			place.StorePolicy(t, policyOf("1"))
			ns, o := place.Namespace(t), place.Observe(t)
			a := mortal.Hold(t, place, storesOutcome(test.outcome))
			img := place.Image(ns, "image", test.path)
			place.Create(t, img)
			a.AwaitStopped(t)
			b := a.Next(t)
			want := place.Eventually(t, img, scene.InPhase(v1alpha1.PhaseSucceeded))

			assert.Equal(t, http.StatusConflict, a.LetGo(t), "an outcome stored against an old resourceVersion")
			got := place.Eventually(t, img, scene.InPhase(v1alpha1.PhaseSucceeded))
			assert.Equal(t, want.Status, got.Status)
			h := wantPromisesKept(t, o)
			assert.Equal(t, test.want, h.Attempts(img.UID))
			wantDeleted(t, b, ns, img)
		})
	}
}

func TestPausedBeforeItDeletesAFailedDataVolume(t *testing.T) {
	place.StorePolicy(t, policyOf("1"))
	ns, o := place.Namespace(t), place.Observe(t)
	a := mortal.Hold(t, place, proxy.To(http.MethodDelete, "datavolumes", false))
	img := place.Image(ns, "image", "/flaky/1/i.qcow2")
	place.Create(t, img)
	a.AwaitStopped(t)
	b := a.Next(t)
	place.Eventually(t, img, scene.InPhase(v1alpha1.PhaseSucceeded))

	assert.Equal(t, http.StatusNotFound, a.LetGo(t), "a DataVolume that is gone")
	place.Eventually(t, img, scene.InPhase(v1alpha1.PhaseSucceeded))
	h := wantPromisesKept(t, o)
	assert.Equal(t, 2, h.Attempts(img.UID))
	wantDeleted(t, b, ns, img)
}

// An image of the same name has been made meanwhile: it keeps its finalizer.
func TestPausedBeforeItRemovesAFinalizer(t *testing.T) {
	place.StorePolicy(t, policyOf("1"))
	ns, o := place.Namespace(t), place.Observe(t)
	a := mortal.Hold(t, place, func(w proxy.Write) bool {
		return proxy.To(http.MethodPatch, "vmdiskimages", false)(w) && !strings.Contains(string(w.Body), v1alpha1.FinalizerImage)
	})
	img := place.Image(ns, "image", "/ok/i.qcow2")
	place.Create(t, img)
	place.Eventually(t, img, scene.InPhase(v1alpha1.PhaseSucceeded))
	require.NoError(t, place.Client().Delete(t.Context(), img.DeepCopy()))
	a.AwaitStopped(t)
	b := a.Next(t)
	place.Gone(t, img.DeepCopy())
	again := place.Image(ns, "image", "/ok/i.qcow2")
	place.Create(t, again)
	place.Eventually(t, again, scene.InPhase(v1alpha1.PhaseSucceeded))

	assert.Equal(t, http.StatusConflict, a.LetGo(t), "the finalizer of another image of that name")
	got := place.Eventually(t, again, scene.InPhase(v1alpha1.PhaseSucceeded))
	assert.Contains(t, got.Finalizers, v1alpha1.FinalizerImage)
	h := wantPromisesKept(t, o)
	assert.Equal(t, 1, h.Attempts(again.UID))
	wantDeleted(t, b, ns, again)
}

// A snapshot reaches the API server when another leader has made one of its own,
// and then when the image is gone.
func TestPausedBeforeItCreatesASnapshot(t *testing.T) {
	place.StorePolicy(t, policyOf("1"))
	for _, deleted := range []bool{false, true} {
		ns, o := place.Namespace(t), place.Observe(t)
		a := mortal.Hold(t, place, proxy.To(http.MethodPost, "volumesnapshots", false))
		img := place.Snapshotted(ns, "image", "/ok/i.qcow2")
		place.Create(t, img)
		a.AwaitStopped(t)
		b := a.Next(t)
		place.Eventually(t, img, scene.InPhase(v1alpha1.PhaseSucceeded))
		if deleted {
			wantDeleted(t, b, ns, img)
		}
		a.LetGo(t)
		if !deleted {
			require.True(t, scene.Await(t, func() bool { return len(children(t, ns)) == 3 }), "DataVolume, claim and one snapshot are wanted: %v", children(t, ns))
		}
		wantNothingLeft(t, ns)
		wantPromisesKept(t, o)
		if !deleted {
			wantDeleted(t, b, ns, img)
		}
		b.End()
	}
}

// wantDeleted deletes images and wants nothing of them to stay.
func wantDeleted(t *testing.T, leads *mortal.Agent, namespace string, images ...*v1alpha1.VMDiskImage) {
	t.Helper()
	require.False(t, leads.Gone(), "the agent that is to delete them has ended")
	for _, img := range images {
		require.NoError(t, place.Client().Delete(t.Context(), img.DeepCopy()))
	}
	for _, img := range images {
		require.True(t, scene.Await(t, func() bool {
			return apierrors.IsNotFound(place.Client().Get(t.Context(), client.ObjectKeyFromObject(img), &v1alpha1.VMDiskImage{}))
		}), "%s is still there", img.Name)
	}
	wantNothingLeft(t, namespace)
}
