//go:build linux

package connect

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/dial"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/link"
	"github.com/pelotech/ot-fleet/hub/members"
)

func TestAPIServerDeadAndBack(t *testing.T) {
	joinBySecret(t, "dead", account(t, mortal, "dead"))
	connected(t, "dead")
	require.NoError(t, mortal.StopAPIServer())
	back := func() { require.NoError(t, mortal.StartAPIServer(t.Context())) }
	defer back() // also where the test gives up

	unreachable(t, "dead", "the connection is refused")
	_, err := provider.Member("dead")
	require.Error(t, err)
	back()
	connected(t, "dead")
	report(t, mortal, "dead-page", "dead")
}

// TestHungHoldsUpNobody has members on an API server that takes connections and
// never answers, while others come and go.
func TestHungHoldsUpNobody(t *testing.T) {
	const hanging = 5
	for i := range hanging {
		joinBySecret(t, fmt.Sprintf("hung-%d", i), account(t, mortal, "hung"))
	}
	for i := range hanging {
		connected(t, fmt.Sprintf("hung-%d", i))
	}
	before := comeAndGo(t, "before")

	require.NoError(t, mortal.PauseAPIServer(t.Context()))
	defer func() { require.NoError(t, mortal.ResumeAPIServer()) }()
	during := comeAndGo(t, "during")
	for i := range hanging {
		unreachable(t, fmt.Sprintf("hung-%d", i), "does not answer in time")
	}
	dark := comeAndGo(t, "dark")
	t.Logf("another member came and went in %s; in %s while %d others began to hang, in %s while they were known to", before, during, hanging, dark)
	for _, took := range []time.Duration{during, dark} {
		// A busy machine takes its time; a hung member would take a timeout.
		require.Less(t, took, before+timeout)
	}

	require.NoError(t, mortal.ResumeAPIServer())
	for i := range hanging {
		connected(t, fmt.Sprintf("hung-%d", i))
	}
	report(t, mortal, "hung-page", "hung-0", "hung-1", "hung-4")
}

// comeAndGo is how long a member of the steady API server takes to be connected,
// to show a report, and to be gone, at the best of three times. It is told to the provider by hand: how fast
// MemberClusters are seen is not measured here.
func comeAndGo(t *testing.T, when string) time.Duration {
	t.Helper()
	cfg, version, err := dial.ParseKubeconfig(account(t, steady, "passing"))
	require.NoError(t, err)
	var best time.Duration
	for i := range 3 {
		name := fmt.Sprintf("passing-%s-%d", when, i)
		started := time.Now()
		provider.Set(name, members.Target{Config: cfg, Namespace: agentNamespace, Version: version})
		connected(t, name)
		report(t, steady, name+"-page", name)
		provider.Remove(name)
		took := time.Since(started)
		_, err = provider.Member(name)
		require.Error(t, err)
		if i == 0 || took < best {
			best = took
		}
	}
	return best
}

// unreachable waits until nobody reaches a member, for what a message says.
func unreachable(t *testing.T, member, why string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(state(t, member, v1alpha1.ReasonUnreachable).Message, why) },
		patience, tick, "%s is not unreachable because %s", member, why)
}

// TestNetworkGoesSilent has the connection carry nothing any more while the API
// server is well: nobody ends it, and no watch ends by itself.
func TestNetworkGoesSilent(t *testing.T) {
	way, err := link.Start(steady.Config())
	require.NoError(t, err)
	defer way.Close()
	cfg, _, err := dial.ParseKubeconfig(account(t, steady, "silent"))
	require.NoError(t, err)
	way.Through(cfg)
	joinBySecret(t, "silent", kubeconfig(t, cfg))
	connected(t, "silent")

	require.NoError(t, way.Hang())
	unreachable(t, "silent", "does not answer in time")
	require.NoError(t, way.Mend(t.Context()))
	connected(t, "silent")
	report(t, steady, "silent-page", "silent")

	way.Cut()
	state(t, "silent", v1alpha1.ReasonUnreachable)
	require.NoError(t, way.Mend(t.Context()))
	connected(t, "silent")
}

// TestWatchOutlivesRequestTimeout keeps a watch for longer than a request may
// take.
func TestWatchOutlivesRequestTimeout(t *testing.T) {
	t.Parallel() // it waits, and disturbs nobody
	cfg, version, err := dial.ParseKubeconfig(account(t, steady, "patient"))
	require.NoError(t, err)
	provider.Set("patient", members.Target{Config: cfg, Namespace: agentNamespace, Version: version})
	defer provider.Remove("patient")
	m := connected(t, "patient")
	longer := time.NewTimer(timeout + time.Second)
	<-longer.C
	now, err := provider.Member("patient")
	require.NoError(t, err)
	require.Same(t, m, now)
	report(t, steady, "patient-page", "patient")
}
