//go:build linux

package connect

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/hub/memberclient"
)

func TestMemberAPIServerRestart(t *testing.T) {
	createSecretMember(t, "dead", createAccount(t, faultyPlane, "dead"))
	awaitConnected(t, "dead")
	require.NoError(t, faultyPlane.StopAPIServer())
	back := func() { require.NoError(t, faultyPlane.StartAPIServer(t.Context())) }
	defer back() // also where the test gives up

	awaitUnreachable(t, "dead", "the connection is refused")
	_, err := memberProvider.GetMember("dead")
	require.Error(t, err)
	back()
	awaitConnected(t, "dead")
	createReport(t, faultyPlane, "dead-page", "dead")
}

// TestHungMemberBlocksNoOther puts members on an API server that accepts connections and
// never answers, while others come and go.
func TestHungMemberBlocksNoOther(t *testing.T) {
	const hanging = 5
	for i := range hanging {
		createSecretMember(t, fmt.Sprintf("hung-%d", i), createAccount(t, faultyPlane, "hung"))
	}
	for i := range hanging {
		awaitConnected(t, fmt.Sprintf("hung-%d", i))
	}
	before := measureReconnect(t, "before")

	require.NoError(t, faultyPlane.PauseAPIServer(t.Context()))
	defer func() { require.NoError(t, faultyPlane.ResumeAPIServer()) }()
	during := measureReconnect(t, "during")
	for i := range hanging {
		awaitUnreachable(t, fmt.Sprintf("hung-%d", i), "does not answer in time")
	}
	dark := measureReconnect(t, "dark")
	t.Logf("another member came and went in %s; in %s while %d others began to hang, in %s while they were known to", before, during, hanging, dark)
	for _, took := range []time.Duration{during, dark} {
		// A hung member would take a timeout, a busy machine takes less.
		require.Less(t, took, before+timeout)
	}

	require.NoError(t, faultyPlane.ResumeAPIServer())
	for i := range hanging {
		awaitConnected(t, fmt.Sprintf("hung-%d", i))
	}
	createReport(t, faultyPlane, "hung-page", "hung-0", "hung-1", "hung-4")
}

// measureReconnect returns the best of three times that a member of the steady API server takes to
// be connected, to show a report and to be removed. It calls the provider itself, so that the watch
// of MemberClusters does not count.
func measureReconnect(t *testing.T, when string) time.Duration {
	t.Helper()
	cfg, version, err := hubclient.ParseKubeconfig(createAccount(t, steadyPlane, "passing"))
	require.NoError(t, err)
	var best time.Duration
	for i := range 3 {
		name := fmt.Sprintf("passing-%s-%d", when, i)
		started := time.Now()
		memberProvider.SetTarget(name, memberclient.Target{Config: cfg, Namespace: agentNamespace, ConfigVersion: version})
		awaitConnected(t, name)
		createReport(t, steadyPlane, name+"-page", name)
		memberProvider.Remove(name)
		took := time.Since(started)
		_, err = memberProvider.GetMember(name)
		require.Error(t, err)
		if i == 0 || took < best {
			best = took
		}
	}
	return best
}

// awaitUnreachable waits until a member is unreachable with words in the message.
func awaitUnreachable(t *testing.T, member, why string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(awaitState(t, member, v1alpha1.ReasonUnreachable).Message, why) },
		patience, tick, "%s is not unreachable because %s", member, why)
}

// TestSilentNetwork silences a connection while the API server is healthy: neither side
// closes it, and no watch ends by itself.
func TestSilentNetwork(t *testing.T) {
	way, err := faults.StartLink(steadyPlane.Config())
	require.NoError(t, err)
	defer way.Close()
	cfg, _, err := hubclient.ParseKubeconfig(createAccount(t, steadyPlane, "silent"))
	require.NoError(t, err)
	way.Redirect(cfg)
	createSecretMember(t, "silent", newKubeconfig(t, cfg))
	awaitConnected(t, "silent")

	require.NoError(t, way.Stall())
	awaitUnreachable(t, "silent", "does not answer in time")
	require.NoError(t, way.Repair(t.Context()))
	awaitConnected(t, "silent")
	createReport(t, steadyPlane, "silent-page", "silent")

	way.Cut()
	awaitState(t, "silent", v1alpha1.ReasonUnreachable)
	require.NoError(t, way.Repair(t.Context()))
	awaitConnected(t, "silent")
}

// TestWatchOutlivesRequestTimeout keeps a watch open for longer than the request timeout.
func TestWatchOutlivesRequestTimeout(t *testing.T) {
	t.Parallel() // it waits, and disturbs nobody
	cfg, version, err := hubclient.ParseKubeconfig(createAccount(t, steadyPlane, "patient"))
	require.NoError(t, err)
	memberProvider.SetTarget("patient", memberclient.Target{Config: cfg, Namespace: agentNamespace, ConfigVersion: version})
	defer memberProvider.Remove("patient")
	m := awaitConnected(t, "patient")
	longer := time.NewTimer(timeout + time.Second)
	<-longer.C
	now, err := memberProvider.GetMember("patient")
	require.NoError(t, err)
	require.Same(t, m, now)
	createReport(t, steadyPlane, "patient-page", "patient")
}
