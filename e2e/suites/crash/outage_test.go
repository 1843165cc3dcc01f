//go:build linux

package crash

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// testOutage breaks the cluster while imports run and others are queued, and wants all of
// them to succeed. The agents are passed to cause in the order of their start.
func testOutage(t *testing.T, cause func(namespace string, agents [2]*faults.FaultyAgent)) {
	t.Helper()
	env.StorePolicy(t, newPolicy("2"))
	ns, o := env.CreateNamespace(t), env.StartObserver(t)
	// An agent that cannot renew its Lease exits. No Deployment restarts it here.
	var agents [2]*faults.FaultyAgent
	restartEnded := func() {
		for i := range agents {
			if agents[i] == nil || agents[i].HasEnded() {
				agents[i] = faults.StartAgent(t, env, faults.WriteHooks{})
			}
		}
	}
	require.NoError(t, program.DeleteAgentLease(t.Context(), env.Client()))
	restartEnded()
	var all []*v1alpha1.VMDiskImage
	for i := range 5 {
		img := env.NewImage(ns, fmt.Sprintf("image-%d", i), fmt.Sprintf("/ok/4s/%d.qcow2", i))
		env.Create(t, img)
		all = append(all, img)
	}
	heals := env.NewImage(ns, "heals", "/flaky/1/1s/heals.qcow2")
	env.Create(t, heals)
	all = append(all, heals)
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(env.Ledger(t).Status.Slots) == 2 }), "want two running imports")

	cause(ns, agents)
	// The observer dates what went during the outage to the next read: read before
	// anything else starts.
	testenv.History(t, o)

	for _, img := range all {
		env.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool {
			restartEnded()
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
		if name, ok := uids[uid]; ok {
			got = append(got, name)
		}
	}
	assert.Equal(t, want, got, "S3: order of the first attempts")
	for _, a := range agents {
		a.KillAndWait()
	}
	requireDeleted(t, faults.StartLeader(t, env, faults.WriteHooks{}), ns, all...)
}

// awaitLeaseLost waits until the leader has exited because it could not renew its Lease.
func awaitLeaseLost(t *testing.T, agents [2]*faults.FaultyAgent) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool { return agents[0].HasEnded() || agents[1].HasEnded() }), "no leader has exited without an API server")
}

func TestAPIServerRestart(t *testing.T) {
	testOutage(t, func(_ string, agents [2]*faults.FaultyAgent) {
		// With watches open, a graceful shutdown takes a minute.
		env.ControlPlane.KillAPIServer()
		t.Cleanup(func() { _ = env.ControlPlane.StartAPIServer(context.Background()) })
		awaitLeaseLost(t, agents)
		require.NoError(t, env.ControlPlane.StartAPIServer(t.Context()))
		require.NoError(t, env.StartCDI())
	})
}

func TestAPIServerPause(t *testing.T) {
	testenv.RunInTurn(t, 9)
	testOutage(t, func(_ string, agents [2]*faults.FaultyAgent) {
		require.NoError(t, env.ControlPlane.PauseAPIServer(t.Context()))
		t.Cleanup(func() { _ = env.ControlPlane.ResumeAPIServer() })
		awaitLeaseLost(t, agents)
		require.NoError(t, env.ControlPlane.ResumeAPIServer())
		require.NoError(t, env.StartCDI())
	})
}

func TestCDIRestart(t *testing.T) {
	testenv.RunInTurn(t, 10)
	testOutage(t, func(namespace string, _ [2]*faults.FaultyAgent) {
		awaitImporter(t, namespace, corev1.PodRunning)
		require.NoError(t, env.StopCDI())
		t.Cleanup(func() { _ = env.StartCDI() })
		awaitImporter(t, namespace, corev1.PodSucceeded)
		require.NoError(t, env.StartCDI())
	})
}

func awaitImporter(t *testing.T, namespace string, phase corev1.PodPhase) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return slices.ContainsFunc(listChildren(t, namespace), func(o client.Object) bool {
			pod, ok := o.(*corev1.Pod)
			return ok && pod.Status.Phase == phase
		})
	}), "no importer is %s", phase)
}
