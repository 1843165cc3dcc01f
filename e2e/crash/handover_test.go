//go:build linux

package crash

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/mortal"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// A leader that is asked to end gives its Lease up; one that is killed keeps the
// others waiting until it has expired.
func TestTermHandsOverSoonerThanKill(t *testing.T) {
	place.StorePolicy(t, policyOf("1"))
	handOver := func(how syscall.Signal) time.Duration {
		require.NoError(t, mortal.Bury(t.Context(), place))
		start := func() *mortal.Agent {
			m, err := mortal.Run(t.Context(), place, mortal.Hooks{}, agent.Options{
				LeaseDuration: 2 * agent.LeaseDuration, Args: []string{"--leader-elect-retry-period=500ms"},
			})
			require.NoError(t, err)
			t.Cleanup(m.End)
			return m
		}
		leads := start()
		require.True(t, scene.Await(t, func() bool { return mortal.Leader(t, place) != "" }))
		standby := start()
		_, err := standby.Metrics(t.Context())
		require.NoError(t, err)
		was := mortal.Leader(t, place)
		began := time.Now()
		require.NoError(t, leads.Signal(how))
		require.True(t, scene.Await(t, func() bool { l := mortal.Leader(t, place); return l != "" && l != was }), "nobody took over after %s", how)
		took := time.Since(began)
		require.True(t, scene.Await(t, leads.Gone), "the agent has not ended after %s", how)
		standby.End()
		return took
	}
	killed, asked := handOver(syscall.SIGKILL), handOver(syscall.SIGTERM)
	t.Logf("taken over %.2f s after SIGTERM, %.2f s after SIGKILL", asked.Seconds(), killed.Seconds())
	assert.Less(t, asked, killed/2)
}
