//go:build linux

package crash

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// A leader that is asked to end gives its Lease up; one that is killed keeps the
// others waiting until it has expired.
func TestSIGTERMHandsOverFasterThanSIGKILL(t *testing.T) {
	testScene.StorePolicy(t, newPolicy("1"))
	handOver := func(how syscall.Signal) time.Duration {
		require.NoError(t, program.DeleteAgentLease(t.Context(), testScene.Client()))
		start := func() *faults.FaultyAgent {
			m, err := faults.RunAgent(t.Context(), testScene, faults.WriteHooks{}, program.Options{
				LeaseDuration: 2 * program.AgentLeaseDuration, Args: []string{"--leader-elect-retry-period=500ms"},
			})
			require.NoError(t, err)
			t.Cleanup(m.KillAndWait)
			return m
		}
		leads := start()
		require.True(t, testenv.Await(t, func() bool { return program.AgentLeaseHolder(t.Context(), testScene.Client()) != "" }))
		standby := start()
		_, err := standby.ReadMetrics(t.Context())
		require.NoError(t, err)
		was := program.AgentLeaseHolder(t.Context(), testScene.Client())
		began := time.Now()
		require.NoError(t, leads.Signal(how))
		require.True(t, testenv.Await(t, func() bool {
			l := program.AgentLeaseHolder(t.Context(), testScene.Client())
			return l != "" && l != was
		}), "nobody took over after %s", how)
		took := time.Since(began)
		require.True(t, testenv.Await(t, leads.HasEnded), "the agent has not ended after %s", how)
		standby.KillAndWait()
		return took
	}
	killed, asked := handOver(syscall.SIGKILL), handOver(syscall.SIGTERM)
	t.Logf("taken over %.2f s after SIGTERM, %.2f s after SIGKILL", asked.Seconds(), killed.Seconds())
	assert.Less(t, asked, killed/2)
}
