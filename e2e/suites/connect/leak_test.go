//go:build linux

package connect

import (
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"

	"github.com/pelotech/ot-fleet/api/hubclient"
	relaycontroller "github.com/pelotech/ot-fleet/hub/controllers/relay"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
	"github.com/pelotech/ot-fleet/hub/memberclient"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// TestReconnectsLeakNothing reconnects a member many times while the relay runs: a hub
// lives for months, and members flap.
func TestReconnectsLeakNothing(t *testing.T) {
	require.NoError(t, installCRDs(hubCRDs)(t.Context(), faultyPlane.Config()))
	idle := runtime.NumGoroutine()
	connections := memberclient.New(memberclient.Options{RequestTimeout: timeout})
	mgr, err := mcmanager.New(faultyPlane.Config(), connections, mcmanager.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)}, // it may be run twice in a process
	})
	require.NoError(t, err)
	live, err := client.New(faultyPlane.Config(), client.Options{Scheme: scheme})
	require.NoError(t, err)
	relays := &relaycontroller.Reconciler{
		Cached: mgr.GetLocalManager().GetCache(), Live: live, Members: connections,
		Replica: shard.NewReplica(live, shard.Options{}), Links: &shard.Links{Cached: mgr.GetLocalManager().GetCache()},
		Metrics: metrics.New(prometheus.NewRegistry()),
	}
	require.NoError(t, relays.Setup(mgr))
	require.NoError(t, mgr.GetLocalManager().Add(connections.Runnable(mgr)))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-ended)
	}()

	cfg, version, err := hubclient.ParseKubeconfig(createAccount(t, faultyPlane, "flapping"))
	require.NoError(t, err)
	last := (*memberclient.Member)(nil)
	connect := func(n int) {
		for i := range n {
			connections.SetTarget("flapping", memberclient.Target{Config: cfg, Namespace: agentNamespace, ConfigVersion: fmt.Sprint(version, time.Now(), i)})
			require.Eventually(t, func() bool {
				m, err := connections.GetMember("flapping")
				if err != nil || m == last {
					return false
				}
				last = m
				return true
			}, patience, tick, "re-connection %d", i)
		}
	}
	connect(5)
	// The sync workers start last, and are many.
	require.Eventually(t, func() bool { return runtime.NumGoroutine() > idle+256 }, patience, tick, "the relay is at work")
	connect(2)
	// The number of other goroutines varies.
	const many, slack = 20, 12
	before := runtime.NumGoroutine()
	connect(many)
	if !pollUntil(func() bool { return runtime.NumGoroutine() <= before+slack }) {
		var stacks strings.Builder
		require.NoError(t, pprof.Lookup("goroutine").WriteTo(&stacks, 1))
		require.Fail(t, "goroutines are left behind", "%d before, %d after %d re-connections:\n%s", before, runtime.NumGoroutine(), many, stacks.String())
	}
}

func pollUntil(done func() bool) bool {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-ticker.C {
		if done() {
			return true
		}
	}
	return false
}
