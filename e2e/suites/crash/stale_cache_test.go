//go:build linux

package crash

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// Two agents hold themselves for the leader, and one of them sees of all images
// and what belongs to them only how they were when all were queued. What it
// learns of is the ledger and the policy: with every slot that is freed it looks
// for the next image in a queue that is long done.
func TestStaleCacheDecidesNothingWrong(t *testing.T) {
	testScene.StorePolicy(t, newPolicy("0"))
	ns, o := testScene.CreateNamespace(t), testScene.StartObserver(t)
	stale := faults.StartLeader(t, testScene, faults.WriteHooks{})
	var all []*v1alpha1.VMDiskImage
	for i := range 4 {
		all = append(all, testScene.NewImage(ns, fmt.Sprintf("fine-%d", i), fmt.Sprintf("/ok/300ms/%d.qcow2", i)))
	}
	fails := testScene.NewImage(ns, "fails", "/servererror/fails.qcow2")
	heals := testScene.NewImage(ns, "heals", "/flaky/1/300ms/heals.qcow2")
	all = append([]*v1alpha1.VMDiskImage{fails, heals}, all...)
	for _, img := range all {
		testScene.Create(t, img)
	}
	for _, img := range all {
		testScene.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonPaused))
	}
	stale.Proxy.HoldWatches("vmdiskimages", "datavolumes", "persistentvolumeclaims", "pods")
	fresh := faults.StartAgent(t, testScene, faults.WriteHooks{}, "--leader-elect=false")
	_, err := fresh.ReadMetrics(t.Context())
	require.NoError(t, err)
	writes := len(stale.Proxy.Writes())

	testScene.StorePolicy(t, newPolicy("1"))
	testScene.AwaitImage(t, fails, testenv.InPhase(v1alpha1.PhaseFailed))
	for _, img := range all[1:] {
		testScene.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
	}
	t.Logf("the agent with the stale cache tried %d writes", len(stale.Proxy.Writes())-writes)
	want := func() {
		h := requirePromisesKept(t, o)
		assert.Equal(t, 2, h.Attempts(fails.UID), "retryLimit + 1")
		assert.Equal(t, 2, h.Attempts(heals.UID))
		for _, img := range all[2:] {
			assert.Equal(t, 1, h.Attempts(img.UID), "DataVolumes of %s", img.Name)
		}
	}
	want()

	// Every slot is free, and the stale agent is alone with them.
	require.NoError(t, fresh.Pause(t.Context()))
	testScene.SetPolicy(t, newPolicy("2"))
	want()
	require.NoError(t, fresh.Resume())

	stale.Proxy.ReleaseWatches()
	requireDeleted(t, fresh, ns, all...)
	want()
}

// An agent that has not heard of a lowered budget reads in the ledger that
// another one has acknowledged it.
func TestStalePolicyRaisesNoBudget(t *testing.T) {
	testScene.StorePolicy(t, newPolicy("2"))
	ns, o := testScene.CreateNamespace(t), testScene.StartObserver(t)
	stale := faults.StartLeader(t, testScene, faults.WriteHooks{})
	var all []*v1alpha1.VMDiskImage
	for i := range 3 {
		img := testScene.NewImage(ns, fmt.Sprintf("image-%d", i), fmt.Sprintf("/hang/%d.qcow2", i))
		testScene.Create(t, img)
		all = append(all, img)
	}
	for _, img := range all[:2] {
		testScene.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSyncing))
	}
	testScene.AwaitImage(t, all[2], testenv.HasReason(v1alpha1.ReasonWaitingForSlot))
	stale.Proxy.HoldWatches("configmaps")
	fresh := faults.StartAgent(t, testScene, faults.WriteHooks{}, "--leader-elect=false")
	testScene.StorePolicy(t, newPolicy("1"))
	require.True(t, testenv.Await(t, func() bool { return testScene.Ledger(t).Status.Budget == 1 }), "the lowered budget is not acknowledged")
	require.NoError(t, o.MarkPolicyAcknowledged(t.Context()))
	require.NoError(t, fresh.Pause(t.Context()))

	require.NoError(t, testScene.Client().Delete(t.Context(), all[0].DeepCopy()))
	testScene.AwaitGone(t, all[0].DeepCopy())
	ledger := testScene.Ledger(t)
	assert.Equal(t, int32(1), ledger.Status.Budget)
	assert.Len(t, ledger.Status.Slots, 1)
	require.NoError(t, fresh.Resume())
	requirePromisesKept(t, o)

	stale.Proxy.ReleaseWatches()
	requireDeleted(t, fresh, ns, all[1:]...)
	requirePromisesKept(t, o)
}
