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
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// outageDuration is how long an API server is away: a minute where there is time for it,
// otherwise longer than a leader keeps its Lease.
func outageDuration() time.Duration {
	if isLongRun() {
		return time.Minute
	}
	return 2 * program.AgentLeaseDuration
}

// testOutage has images imported, some of them running and some queued when
// something happens to the cluster, and wants all of them to end well.
func testOutage(t *testing.T, happens func()) {
	t.Helper()
	testScene.StorePolicy(t, newPolicy("2"))
	ns, o := testScene.CreateNamespace(t), testScene.StartObserver(t)
	// An agent that cannot renew its Lease ends, and is started again: by a
	// Deployment, here by the test.
	var agents [2]*faults.FaultyAgent
	keepAlive := func() {
		for i := range agents {
			if agents[i] == nil || agents[i].HasEnded() {
				agents[i] = faults.StartAgent(t, testScene, faults.WriteHooks{})
			}
		}
	}
	require.NoError(t, program.DeleteAgentLease(t.Context(), testScene.Client()))
	keepAlive()
	var all []*v1alpha1.VMDiskImage
	for i := range 5 {
		img := testScene.NewImage(ns, fmt.Sprintf("image-%d", i), fmt.Sprintf("/ok/4s/%d.qcow2", i))
		testScene.Create(t, img)
		all = append(all, img)
	}
	heals := testScene.NewImage(ns, "heals", "/flaky/1/1s/heals.qcow2")
	testScene.Create(t, heals)
	all = append(all, heals)
	require.True(t, testenv.Await(t, func() bool { return len(testScene.Ledger(t).Status.Slots) == 2 }), "no two imports run")

	happens()
	// Before anything else is started, for it takes what went meanwhile for gone now.
	testenv.History(t, o)

	for _, img := range all {
		testScene.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool {
			keepAlive()
			return got.Status.Phase == v1alpha1.PhaseSucceeded
		})
	}
	h := requirePromisesKept(t, o)
	assert.LessOrEqual(t, h.MaxRunning(), 2)
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
	requireDeleted(t, agents[0], ns, all...)
}

func TestAPIServerRestart(t *testing.T) {
	testOutage(t, func() {
		// Without a goodbye: with watches open, a polite end takes a minute.
		testScene.ControlPlane.KillAPIServer()
		t.Cleanup(func() { _ = testScene.ControlPlane.StartAPIServer(context.Background()) })
		awaitDuration(t, outageDuration())
		require.NoError(t, testScene.ControlPlane.StartAPIServer(t.Context()))
		require.NoError(t, testScene.StartCDI())
	})
}

func TestAPIServerPause(t *testing.T) {
	testOutage(t, func() {
		require.NoError(t, testScene.ControlPlane.PauseAPIServer(t.Context()))
		awaitDuration(t, outageDuration())
		require.NoError(t, testScene.ControlPlane.ResumeAPIServer())
		require.NoError(t, testScene.StartCDI())
	})
}

func TestCDIRestart(t *testing.T) {
	testOutage(t, func() {
		require.NoError(t, testScene.StopCDI())
		awaitDuration(t, program.AgentLeaseDuration)
		require.NoError(t, testScene.StartCDI())
	})
}

// awaitDuration lets time pass that is the subject of a test.
func awaitDuration(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}
