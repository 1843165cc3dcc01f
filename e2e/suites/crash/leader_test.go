//go:build linux

package crash

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// freezeLeaderAt pauses the leader at its first write that matches, with a budget of 1.
func freezeLeaderAt(t *testing.T, matches func(faults.Write) bool) (namespace string, o *observer.Observer, leader *faults.FrozenLeader) {
	t.Helper()
	env.StorePolicy(t, newPolicy("1"))
	namespace, o = env.CreateNamespace(t), env.StartObserver(t)
	return namespace, o, faults.FreezeLeaderAt(t, env, matches)
}

// createAndReplaceFrozen creates an image, and starts the successor of the leader that freezes at it.
func createAndReplaceFrozen(t *testing.T, leader *faults.FrozenLeader, img *v1alpha1.VMDiskImage) *faults.FaultyAgent {
	t.Helper()
	env.Create(t, img)
	leader.AwaitFrozen(t)
	return leader.StartSuccessor(t)
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
	testenv.RunInTurn(t, 0)
	ns, o, a := freezeLeaderAt(t, addsSlot)
	first, second := env.NewImage(ns, "first", "/ok/first.qcow2"), env.NewImage(ns, "second", "/hang/second.qcow2")
	b := createAndReplaceFrozen(t, a, first)
	env.AwaitImage(t, first, testenv.InPhase(v1alpha1.PhaseSucceeded))
	// The only slot is taken: the held write would exceed the budget.
	env.Create(t, second)
	env.AwaitImage(t, second, testenv.InPhase(v1alpha1.PhaseSyncing))

	assert.Equal(t, http.StatusConflict, a.ReleaseWrite(t), "a slot written with an old resourceVersion")
	slots := env.Ledger(t).Status.Slots
	require.Len(t, slots, 1)
	assert.Equal(t, second.UID, slots[0].Image.UID)
	h := requirePromisesKept(t, o)
	assert.Equal(t, 1, h.Attempts(first.UID))
	requireDeleted(t, b, ns, first, second)
}

// TestPausedBeforeCreateOfFreedSlot: when the held DataVolume reaches the API server,
// another leader has created it, freed the slot, and deleted the image.
func TestPausedBeforeCreateOfFreedSlot(t *testing.T) {
	testenv.RunInTurn(t, 1)
	ns, o, a := freezeLeaderAt(t, faults.MatchWrite(http.MethodPost, "datavolumes", false))
	first, second := env.NewImage(ns, "first", "/ok/first.qcow2"), env.NewImage(ns, "second", "/hang/second.qcow2")
	b := createAndReplaceFrozen(t, a, first)
	env.AwaitImage(t, first, testenv.InPhase(v1alpha1.PhaseSucceeded))
	requireDeleted(t, b, ns, first)
	env.Create(t, second)
	env.AwaitImage(t, second, testenv.InPhase(v1alpha1.PhaseSyncing))

	assert.Equal(t, http.StatusForbidden, a.ReleaseWrite(t), "a DataVolume whose slot is freed")
	h := requirePromisesKept(t, o)
	assert.Equal(t, 1, h.Attempts(first.UID))
	requireDeleted(t, b, ns, second)
}

// TestPausedBeforeCreateOfEndedAttempt: the attempt has failed, and its slot is still taken
// because one of its claims is left.
func TestPausedBeforeCreateOfEndedAttempt(t *testing.T) {
	testenv.RunInTurn(t, 2)
	ns, o, a := freezeLeaderAt(t, faults.MatchWrite(http.MethodPost, "datavolumes", false))
	fails := env.NewImage(ns, "fails", "/servererror/5s/fails.qcow2")
	b := createAndReplaceFrozen(t, a, fails)

	const keep = "crash.pelotech.ot/keep"
	var kept *corev1.PersistentVolumeClaim
	require.True(t, testenv.AwaitCondition(t, func() bool {
		for _, c := range listChildren(t, ns) {
			if claim, ok := c.(*corev1.PersistentVolumeClaim); ok && controllerutil.AddFinalizer(claim, keep) {
				kept = claim
				return env.Client().Update(t.Context(), claim) == nil
			}
		}
		return false
	}), "no claim was created")
	require.True(t, testenv.AwaitCondition(t, func() bool {
		dvs := 0
		for _, c := range listChildren(t, ns) {
			if _, ok := c.(*cdiv1.DataVolume); ok {
				dvs++
			}
		}
		slots := env.Ledger(t).Status.Slots
		return dvs == 0 && len(slots) == 1 && slots[0].Ended
	}), "the failed attempt is not deleted, or its slot is freed: %+v", env.Ledger(t).Status.Slots)

	assert.Equal(t, http.StatusForbidden, a.ReleaseWrite(t), "the DataVolume of an ended attempt")
	requirePromisesKept(t, o)
	env.Update(t, kept, func() { controllerutil.RemoveFinalizer(kept, keep) })
	env.AwaitImage(t, fails, testenv.InPhase(v1alpha1.PhaseFailed))
	h := requirePromisesKept(t, o)
	assert.Equal(t, 2, h.Attempts(fails.UID), "retryLimit + 1")
	requireDeleted(t, b, ns, fails)
}

func TestPausedBeforeOutcomeWrite(t *testing.T) {
	testenv.RunInTurn(t, 3)
	for name, test := range map[string]struct {
		path    string
		outcome v1alpha1.Outcome
		want    int
	}{
		"success": {"/ok/i.qcow2", v1alpha1.OutcomeSucceeded, 1},
		"failure": {"/flaky/1/i.qcow2", v1alpha1.OutcomeFailed, 2},
	} {
		t.Run(name, func(t *testing.T) {
			ns, o, a := freezeLeaderAt(t, isOutcomeWrite(test.outcome))
			img := env.NewImage(ns, "image", test.path)
			b := createAndReplaceFrozen(t, a, img)
			want := env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))

			assert.Equal(t, http.StatusConflict, a.ReleaseWrite(t), "an outcome written with an old resourceVersion")
			got := env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
			assert.Equal(t, want.Status, got.Status)
			h := requirePromisesKept(t, o)
			assert.Equal(t, test.want, h.Attempts(img.UID))
			requireDeleted(t, b, ns, img)
		})
	}
}

func TestPausedBeforeDataVolumeDelete(t *testing.T) {
	testenv.RunInTurn(t, 4)
	ns, o, a := freezeLeaderAt(t, faults.MatchWrite(http.MethodDelete, "datavolumes", false))
	img := env.NewImage(ns, "image", "/flaky/1/i.qcow2")
	b := createAndReplaceFrozen(t, a, img)
	env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))

	assert.Equal(t, http.StatusNotFound, a.ReleaseWrite(t), "a deleted DataVolume")
	env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
	h := requirePromisesKept(t, o)
	assert.Equal(t, 2, h.Attempts(img.UID))
	requireDeleted(t, b, ns, img)
}

// TestPausedBeforeFinalizerRemoval: a new image of the same name keeps its finalizer.
func TestPausedBeforeFinalizerRemoval(t *testing.T) {
	testenv.RunInTurn(t, 5)
	ns, o, a := freezeLeaderAt(t, func(w faults.Write) bool {
		return faults.MatchWrite(http.MethodPatch, "vmdiskimages", false)(w) && !strings.Contains(string(w.Body), v1alpha1.FinalizerImage)
	})
	img := env.NewImage(ns, "image", "/ok/i.qcow2")
	env.Create(t, img)
	env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
	require.NoError(t, env.Client().Delete(t.Context(), img.DeepCopy()))
	a.AwaitFrozen(t)
	b := a.StartSuccessor(t)
	env.AwaitGone(t, img.DeepCopy())
	again := env.NewImage(ns, "image", "/ok/i.qcow2")
	env.Create(t, again)
	env.AwaitImage(t, again, testenv.InPhase(v1alpha1.PhaseSucceeded))

	assert.Equal(t, http.StatusConflict, a.ReleaseWrite(t), "the finalizer of another image of the same name")
	got := env.AwaitImage(t, again, testenv.InPhase(v1alpha1.PhaseSucceeded))
	assert.Contains(t, got.Finalizers, v1alpha1.FinalizerImage)
	h := requirePromisesKept(t, o)
	assert.Equal(t, 1, h.Attempts(again.UID))
	requireDeleted(t, b, ns, again)
}

// TestPausedBeforeSnapshotCreate: when the held VolumeSnapshot reaches the API server,
// another leader has created it by the stored name, or has deleted the image.
func TestPausedBeforeSnapshotCreate(t *testing.T) {
	testenv.RunInTurn(t, 6)
	for _, deleted := range []bool{false, true} {
		ns, o, a := freezeLeaderAt(t, faults.MatchWrite(http.MethodPost, "volumesnapshots", false))
		img := env.NewSnapshottedImage(ns, "image", "/ok/i.qcow2")
		b := createAndReplaceFrozen(t, a, img)
		env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
		if deleted {
			requireDeleted(t, b, ns, img)
		}
		released := a.ReleaseWrite(t)
		if !deleted {
			assert.Equal(t, http.StatusConflict, released, "each try is for the same name")
			require.True(t, testenv.AwaitCondition(t, func() bool { return len(listChildren(t, ns)) == 3 }), "want a DataVolume, a claim and one snapshot: %v", listChildren(t, ns))
		}
		requireNothingLeft(t, ns)
		requirePromisesKept(t, o)
		if !deleted {
			requireDeleted(t, b, ns, img)
		}
		b.KillAndWait()
	}
}

// TestNextLeaderJudgesFailuresByThePolicy kills a leader before it stores a failure. Race:
// the next leader may reconcile the image before it has read the policy, and the default
// policy allows retries.
func TestNextLeaderJudgesFailuresByThePolicy(t *testing.T) {
	testenv.RunInTurn(t, 8)
	env.StorePolicy(t, map[string]string{"concurrency": "4", "retryLimit": "0"})
	ns, o := env.CreateNamespace(t), env.StartObserver(t)
	first := faults.StartLeader(t, env, faults.WriteHooks{Before: faults.OnFirst(isOutcomeWrite(v1alpha1.OutcomeFailed), func(a *faults.FaultyAgent, _ faults.Write) error {
		a.Kill()
		<-a.Done()
		return faults.DropConnection()
	})})
	var images []*v1alpha1.VMDiskImage
	for _, name := range []string{"a", "b", "c", "d"} {
		img := env.NewImage(ns, name, "/servererror/"+name+".qcow2")
		env.Create(t, img)
		images = append(images, img)
	}
	require.True(t, testenv.AwaitCondition(t, first.HasEnded), "no outcome Failed was written")
	next := faults.StartLeader(t, env, faults.WriteHooks{})
	for _, img := range images {
		env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseFailed))
	}
	h := requirePromisesKept(t, o)
	for _, img := range images {
		assert.Equal(t, 1, h.Attempts(img.UID), "retryLimit + 1 DataVolumes of %s", img.Name)
	}
	requireDeleted(t, next, ns, images...)
}

// TestSIGTERMHandsOverFasterThanSIGKILL: on SIGTERM the leader releases its Lease; after
// SIGKILL the standby waits until the Lease expires.
func TestSIGTERMHandsOverFasterThanSIGKILL(t *testing.T) {
	env.StorePolicy(t, newPolicy("1"))
	measureHandOver := func(signal syscall.Signal) time.Duration {
		require.NoError(t, program.DeleteAgentLease(t.Context(), env.Client()))
		startAgent := func() *faults.FaultyAgent {
			a, err := faults.RunAgent(t.Context(), env, faults.WriteHooks{}, program.Options{
				LeaseDuration: 2 * program.AgentLeaseDuration, Args: []string{"--leader-elect-retry-period=500ms"},
			})
			require.NoError(t, err)
			t.Cleanup(a.KillAndWait)
			return a
		}
		leader := startAgent()
		require.True(t, testenv.AwaitCondition(t, func() bool { return program.AgentLeaseHolder(t.Context(), env.Client()) != "" }))
		standby := startAgent()
		_, err := standby.ReadMetrics(t.Context())
		require.NoError(t, err)
		killed := program.AgentLeaseHolder(t.Context(), env.Client())
		start := time.Now()
		require.NoError(t, leader.Signal(signal))
		require.True(t, testenv.AwaitCondition(t, func() bool {
			holder := program.AgentLeaseHolder(t.Context(), env.Client())
			return holder != "" && holder != killed
		}), "no agent took over after %s", signal)
		took := time.Since(start)
		require.True(t, testenv.AwaitCondition(t, leader.HasEnded), "the agent has not ended after %s", signal)
		standby.KillAndWait()
		return took
	}
	// A machine that stalls delays one hand-over; a Lease that nobody gives up delays all.
	var afterKill, afterTerm time.Duration
	for range 3 {
		afterKill, afterTerm = measureHandOver(syscall.SIGKILL), measureHandOver(syscall.SIGTERM)
		t.Logf("takeover %.2f s after SIGTERM, %.2f s after SIGKILL", afterTerm.Seconds(), afterKill.Seconds())
		if afterTerm < afterKill/2 {
			break
		}
	}
	assert.Less(t, afterTerm, afterKill/2)
}
