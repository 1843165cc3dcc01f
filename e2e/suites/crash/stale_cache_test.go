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

// TestStaleCacheDecidesNothingWrong runs two agents that both consider themselves the
// leader. One of them has a cache of images and their children from when all images were
// queued, and a fresh view of ledger and policy: whenever a slot is freed, it picks the next
// image from a queue that is long done.
func TestStaleCacheDecidesNothingWrong(t *testing.T) {
	env.StorePolicy(t, newPolicy("0"))
	ns, o := env.CreateNamespace(t), env.StartObserver(t)
	stale := faults.StartLeader(t, env, faults.WriteHooks{})
	var all []*v1alpha1.VMDiskImage
	for i := range 4 {
		all = append(all, env.NewImage(ns, fmt.Sprintf("fine-%d", i), fmt.Sprintf("/ok/300ms/%d.qcow2", i)))
	}
	fails := env.NewImage(ns, "fails", "/servererror/fails.qcow2")
	heals := env.NewImage(ns, "heals", "/flaky/1/300ms/heals.qcow2")
	all = append([]*v1alpha1.VMDiskImage{fails, heals}, all...)
	for _, img := range all {
		env.Create(t, img)
	}
	for _, img := range all {
		env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonPaused))
	}
	stale.Proxy.HoldWatches("vmdiskimages", "datavolumes", "persistentvolumeclaims", "pods")
	fresh := faults.StartAgent(t, env, faults.WriteHooks{}, "--leader-elect=false")
	_, err := fresh.ReadMetrics(t.Context())
	require.NoError(t, err)
	writes := len(stale.Proxy.Writes())

	env.StorePolicy(t, newPolicy("1"))
	env.AwaitImage(t, fails, testenv.InPhase(v1alpha1.PhaseFailed))
	for _, img := range all[1:] {
		env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
	}
	t.Logf("the agent with the stale cache tried %d writes", len(stale.Proxy.Writes())-writes)
	requireAttempts := func() {
		h := requirePromisesKept(t, o)
		assert.Equal(t, 2, h.Attempts(fails.UID), "retryLimit + 1")
		assert.Equal(t, 2, h.Attempts(heals.UID))
		for _, img := range all[2:] {
			assert.Equal(t, 1, h.Attempts(img.UID), "DataVolumes of %s", img.Name)
		}
	}
	requireAttempts()

	// Every slot is free, and only the stale agent runs.
	require.NoError(t, fresh.Pause(t.Context()))
	env.SetPolicy(t, newPolicy("2"))
	requireAttempts()
	require.NoError(t, fresh.Resume())

	stale.Proxy.ReleaseWatches()
	requireDeleted(t, fresh, ns, all...)
	requireAttempts()
}

// TestStalePolicyRaisesNoBudget: an agent that misses a lowered budget learns of it from the
// ledger, where another agent has acknowledged it.
func TestStalePolicyRaisesNoBudget(t *testing.T) {
	testenv.RunInTurn(t, 7)
	env.StorePolicy(t, newPolicy("2"))
	ns, o := env.CreateNamespace(t), env.StartObserver(t)
	stale := faults.StartLeader(t, env, faults.WriteHooks{})
	var all []*v1alpha1.VMDiskImage
	for i := range 3 {
		img := env.NewImage(ns, fmt.Sprintf("image-%d", i), fmt.Sprintf("/hang/%d.qcow2", i))
		env.Create(t, img)
		all = append(all, img)
	}
	for _, img := range all[:2] {
		env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSyncing))
	}
	env.AwaitImage(t, all[2], testenv.HasReason(v1alpha1.ReasonWaitingForSlot))
	stale.Proxy.HoldWatches("configmaps")
	fresh := faults.StartAgent(t, env, faults.WriteHooks{}, "--leader-elect=false")
	env.StorePolicy(t, newPolicy("1"))
	require.True(t, testenv.AwaitCondition(t, func() bool { return env.Ledger(t).Status.Budget == 1 }), "the lowered budget is not acknowledged")
	require.NoError(t, o.MarkPolicyAcknowledged(t.Context()))
	require.NoError(t, fresh.Pause(t.Context()))

	require.NoError(t, env.Client().Delete(t.Context(), all[0].DeepCopy()))
	env.AwaitGone(t, all[0].DeepCopy())
	ledger := env.Ledger(t)
	assert.Equal(t, int32(1), ledger.Status.Budget)
	assert.Len(t, ledger.Status.Slots, 1)
	require.NoError(t, fresh.Resume())
	requirePromisesKept(t, o)

	stale.Proxy.ReleaseWatches()
	requireDeleted(t, fresh, ns, all[1:]...)
	requirePromisesKept(t, o)
}
