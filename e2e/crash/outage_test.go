//go:build linux

package crash

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/mortal"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// outage is how long an API server is away: a minute where there is time for it,
// otherwise longer than a leader keeps its Lease.
func outage() time.Duration {
	if long() {
		return time.Minute
	}
	return 2 * agent.LeaseDuration
}

// throughOutage has images imported, some of them running and some queued when
// something happens to the cluster, and wants all of them to end well.
func throughOutage(t *testing.T, happens func()) {
	t.Helper()
	place.StorePolicy(t, policyOf("2"))
	ns, o := place.Namespace(t), place.Observe(t)
	// An agent that cannot renew its Lease ends, and is started again: by a
	// Deployment, here by the test.
	var agents [2]*mortal.Agent
	keepAlive := func() {
		for i := range agents {
			if agents[i] == nil || agents[i].Gone() {
				agents[i] = mortal.Start(t, place, mortal.Hooks{})
			}
		}
	}
	require.NoError(t, mortal.Bury(t.Context(), place))
	keepAlive()
	var all []*v1alpha1.VMDiskImage
	for i := range 5 {
		img := place.Image(ns, fmt.Sprintf("image-%d", i), fmt.Sprintf("/ok/4s/%d.qcow2", i))
		place.Create(t, img)
		all = append(all, img)
	}
	heals := place.Image(ns, "heals", "/flaky/1/1s/heals.qcow2")
	place.Create(t, heals)
	all = append(all, heals)
	require.True(t, scene.Await(t, func() bool { return len(place.Ledger(t).Status.Slots) == 2 }), "no two imports run")

	happens()
	// Before anything else is started, for it takes what went meanwhile for gone now.
	scene.History(t, o)

	for _, img := range all {
		place.Eventually(t, img, func(got *v1alpha1.VMDiskImage) bool {
			keepAlive()
			return got.Status.Phase == v1alpha1.PhaseSucceeded
		})
	}
	h := wantPromisesKept(t, o)
	assert.LessOrEqual(t, h.MostRunning(), 2)
	for _, img := range all {
		assert.LessOrEqual(t, h.Attempts(img.UID), 2, "retryLimit + 1 DataVolumes of %s", img.Name)
	}
	uids := map[types.UID]string{}
	var want, got []string
	for _, img := range all {
		uids[img.UID] = img.Name
		want = append(want, img.Name)
	}
	for _, uid := range h.StartOrder() {
		if name, ours := uids[uid]; ours {
			got = append(got, name)
		}
	}
	assert.Equal(t, want, got, "S3: the order of the first attempts")
	keepAlive()
	wantDeleted(t, agents[0], ns, all...)
}

func TestAPIServerGone(t *testing.T) {
	throughOutage(t, func() {
		// Without a goodbye: with watches open, a polite end takes a minute.
		place.ControlPlane.KillAPIServer()
		t.Cleanup(func() { _ = place.ControlPlane.StartAPIServer(context.Background()) })
		passes(t, outage())
		require.NoError(t, place.ControlPlane.StartAPIServer(t.Context()))
		require.NoError(t, place.StartCDI())
	})
}

func TestAPIServerHangs(t *testing.T) {
	throughOutage(t, func() {
		require.NoError(t, place.ControlPlane.PauseAPIServer(t.Context()))
		passes(t, outage())
		require.NoError(t, place.ControlPlane.ResumeAPIServer())
		require.NoError(t, place.StartCDI())
	})
}

func TestCDIRestarted(t *testing.T) {
	throughOutage(t, func() {
		require.NoError(t, place.StopCDI())
		passes(t, agent.LeaseDuration)
		require.NoError(t, place.StartCDI())
	})
}

// passes lets time pass that is the subject of a test.
func passes(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}
