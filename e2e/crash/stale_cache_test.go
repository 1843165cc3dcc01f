//go:build linux

package crash

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/mortal"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// Two agents hold themselves for the leader, and one of them sees of all images
// and what belongs to them only how they were when all were queued. What it
// learns of is the ledger and the policy: with every slot that is freed it looks
// for the next image in a queue that is long done.
func TestStaleCacheTakesNoWrongDecision(t *testing.T) {
	place.StorePolicy(t, policyOf("0"))
	ns, o := place.Namespace(t), place.Observe(t)
	stale := mortal.StartLeading(t, place, mortal.Hooks{})
	var all []*v1alpha1.VMDiskImage
	for i := range 4 {
		all = append(all, place.Image(ns, fmt.Sprintf("fine-%d", i), fmt.Sprintf("/ok/300ms/%d.qcow2", i)))
	}
	fails := place.Image(ns, "fails", "/servererror/fails.qcow2")
	heals := place.Image(ns, "heals", "/flaky/1/300ms/heals.qcow2")
	all = append([]*v1alpha1.VMDiskImage{fails, heals}, all...)
	for _, img := range all {
		place.Create(t, img)
	}
	for _, img := range all {
		place.Eventually(t, img, scene.Because(v1alpha1.ReasonPaused))
	}
	stale.Proxy.HoldWatches("vmdiskimages", "datavolumes", "persistentvolumeclaims", "pods")
	fresh := mortal.Start(t, place, mortal.Hooks{}, "--leader-elect=false")
	_, err := fresh.Metrics(t.Context())
	require.NoError(t, err)
	writes := len(stale.Proxy.Writes())

	place.StorePolicy(t, policyOf("1"))
	place.Eventually(t, fails, scene.InPhase(v1alpha1.PhaseFailed))
	for _, img := range all[1:] {
		place.Eventually(t, img, scene.InPhase(v1alpha1.PhaseSucceeded))
	}
	t.Logf("the agent with the stale cache tried %d writes", len(stale.Proxy.Writes())-writes)
	want := func() {
		h := wantPromisesKept(t, o)
		assert.Equal(t, 2, h.Attempts(fails.UID), "retryLimit + 1")
		assert.Equal(t, 2, h.Attempts(heals.UID))
		for _, img := range all[2:] {
			assert.Equal(t, 1, h.Attempts(img.UID), "DataVolumes of %s", img.Name)
		}
	}
	want()

	// Every slot is free, and the stale agent is alone with them.
	require.NoError(t, fresh.Pause(t.Context()))
	place.SetPolicy(t, policyOf("2"))
	want()
	require.NoError(t, fresh.Resume())

	stale.Proxy.ReleaseWatches()
	wantDeleted(t, fresh, ns, all...)
	want()
}

// An agent that has not heard of a lowered budget reads in the ledger that
// another one has acknowledged it.
func TestStalePolicyRaisesNoBudget(t *testing.T) {
	place.StorePolicy(t, policyOf("2"))
	ns, o := place.Namespace(t), place.Observe(t)
	stale := mortal.StartLeading(t, place, mortal.Hooks{})
	var all []*v1alpha1.VMDiskImage
	for i := range 3 {
		img := place.Image(ns, fmt.Sprintf("image-%d", i), fmt.Sprintf("/hang/%d.qcow2", i))
		place.Create(t, img)
		all = append(all, img)
	}
	for _, img := range all[:2] {
		place.Eventually(t, img, scene.InPhase(v1alpha1.PhaseSyncing))
	}
	place.Eventually(t, all[2], scene.Because(v1alpha1.ReasonWaitingForSlot))
	stale.Proxy.HoldWatches("configmaps")
	fresh := mortal.Start(t, place, mortal.Hooks{}, "--leader-elect=false")
	place.StorePolicy(t, policyOf("1"))
	require.True(t, scene.Await(t, func() bool { return place.Ledger(t).Status.Budget == 1 }), "the lowered budget is not acknowledged")
	require.NoError(t, o.Bind(t.Context()))
	require.NoError(t, fresh.Pause(t.Context()))

	require.NoError(t, place.Client().Delete(t.Context(), all[0].DeepCopy()))
	place.Gone(t, all[0].DeepCopy())
	ledger := place.Ledger(t)
	assert.Equal(t, int32(1), ledger.Status.Budget)
	assert.Len(t, ledger.Status.Slots, 1)
	require.NoError(t, fresh.Resume())
	wantPromisesKept(t, o)

	stale.Proxy.ReleaseWatches()
	wantDeleted(t, fresh, ns, all[1:]...)
	wantPromisesKept(t, o)
}
