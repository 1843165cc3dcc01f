//go:build linux

package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// FrozenLeader is a leader that was paused with one of its writes in flight.
type FrozenLeader struct {
	*FaultyAgent
	env     *testenv.Env
	frozen  chan error
	release chan struct{}
	write   Write
	// frozenAt is when it was paused: it cannot have renewed its Lease later.
	frozenAt time.Time
}

// frozenLease is long enough that a busy machine, on which nobody starts a leader again, does not make
// it lose its Lease before it is paused.
const frozenLease = 20 * time.Second

// FreezeLeaderAt starts a leader that is paused at the first write that matches. The write
// stays in flight until ReleaseWrite.
func FreezeLeaderAt(t *testing.T, s *testenv.Env, at func(Write) bool) *FrozenLeader {
	t.Helper()
	h := &FrozenLeader{env: s, frozen: make(chan error, 1), release: make(chan struct{})}
	h.FaultyAgent = startLeader(t, s, WriteHooks{Before: OnFirst(at, func(a *FaultyAgent, w Write) error {
		h.write, h.frozenAt = w, time.Now()
		h.frozen <- a.Pause(t.Context())
		select {
		case <-h.release:
		case <-t.Context().Done():
		}
		return nil
	})}, program.Options{LeaseDuration: frozenLease})
	return h
}

// AwaitFrozen waits until the leader is paused.
func (h *FrozenLeader) AwaitFrozen(t *testing.T) {
	t.Helper()
	var err error
	require.True(t, testenv.AwaitCondition(t, func() bool {
		select {
		case err = <-h.frozen:
			return true
		default:
			return false
		}
	}), "the agent never made the write to hold")
	require.NoError(t, err)
}

// StartSuccessor starts an agent that takes over. It deletes the frozen leader's Lease: the
// successor need not wait for it to expire.
func (h *FrozenLeader) StartSuccessor(t *testing.T) *FaultyAgent {
	t.Helper()
	frozen := program.AgentLeaseHolder(t.Context(), h.env.Client())
	require.NoError(t, program.DeleteAgentLease(t.Context(), h.env.Client()))
	a := startAgent(t, h.env, WriteHooks{}, program.Options{LeaseDuration: program.StableLease})
	require.True(t, testenv.AwaitCondition(t, func() bool {
		holder := program.AgentLeaseHolder(t.Context(), h.env.Client())
		return holder != "" && holder != frozen
	}), "no agent took over from the frozen leader")
	return a
}

// ReleaseWrite passes the held write on and returns the HTTP status of its answer. Then the
// agent resumes and must exit, because it has lost its Lease.
func (h *FrozenLeader) ReleaseWrite(t *testing.T) int {
	t.Helper()
	close(h.release)
	status := h.Proxy.AwaitAnswer(t, h.write)
	// Until its deadline for renewals has passed, it would still consider itself the leader.
	require.True(t, testenv.AwaitCondition(t, func() bool { return time.Since(h.frozenAt) > frozenLease }))
	require.NoError(t, h.Resume())
	require.True(t, testenv.AwaitCondition(t, h.HasEnded), "a leader that lost its Lease while it was frozen still runs")
	return status
}

// AwaitAnswer waits until a write that was held is answered, and returns the answer's HTTP status.
func (p *Proxy) AwaitAnswer(t *testing.T, write Write) (status int) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		for _, w := range p.Writes() {
			if w.N == write.N {
				status = w.Status
			}
		}
		return status != 0
	}), "the held write was not answered: %s", write)
	return status
}
