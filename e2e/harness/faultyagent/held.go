//go:build linux

package faultyagent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/agent"
	"github.com/pelotech/ot-fleet/e2e/harness/proxy"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// FrozenLeader is a leader that was frozen with one of its writes on the way to the API
// server.
type FrozenLeader struct {
	*FaultyAgent
	env     *testenv.Env
	frozen  chan error
	release chan struct{}
	write   proxy.Write
}

// FreezeLeaderAt starts an agent that leads until it makes a certain write: there, write
// and agent come to a stop.
func FreezeLeaderAt(t *testing.T, s *testenv.Env, at func(proxy.Write) bool) *FrozenLeader {
	t.Helper()
	h := &FrozenLeader{env: s, frozen: make(chan error, 1), release: make(chan struct{})}
	h.FaultyAgent = startLeader(t, s, WriteHooks{Before: OnFirst(at, func(a *FaultyAgent, w proxy.Write) error {
		h.write = w
		h.frozen <- a.Pause(t.Context())
		select {
		case <-h.release:
		case <-t.Context().Done():
		}
		return nil
	})}, agent.Options{})
	return h
}

// AwaitFrozen waits until the leader has come to its stop.
func (h *FrozenLeader) AwaitFrozen(t *testing.T) {
	t.Helper()
	var err error
	require.True(t, testenv.Await(t, func() bool {
		select {
		case err = <-h.frozen:
			return true
		default:
			return false
		}
	}), "the agent never made the write that was to be held")
	require.NoError(t, err)
}

// StartSuccessor starts another agent, which takes over when the Lease of the frozen one
// has expired, and stays the leader: nobody starts it again.
func (h *FrozenLeader) StartSuccessor(t *testing.T) *FaultyAgent {
	t.Helper()
	was := LeaseHolder(t, h.env)
	a := startAgent(t, h.env, WriteHooks{}, agent.Options{LeaseDuration: stableLeaseDuration})
	require.True(t, testenv.Await(t, func() bool { l := LeaseHolder(t, h.env); return l != "" && l != was }), "nobody took over from a frozen leader")
	return a
}

// ReleaseWrite passes the held write on, and returns what the API server answered; then
// the agent runs on, and is to end: it has lost its Lease.
func (h *FrozenLeader) ReleaseWrite(t *testing.T) int {
	t.Helper()
	close(h.release)
	status := 0
	require.True(t, testenv.Await(t, func() bool {
		for _, w := range h.Proxy.Writes() {
			if w.N == h.write.N {
				status = w.Status
			}
		}
		return status != 0
	}), "the held write was not answered: %s", h.write)
	require.NoError(t, h.Resume())
	require.True(t, testenv.Await(t, h.HasEnded), "a leader that lost its Lease while it was frozen goes on")
	return status
}
