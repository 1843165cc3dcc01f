//go:build linux

package mortal

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// Held is a leader that was frozen with one of its writes on the way to the API
// server.
type Held struct {
	*Agent
	scene   *scene.Scene
	stopped chan error
	release chan struct{}
	write   proxy.Write
}

// Hold starts an agent that leads until it makes a certain write: there, write
// and agent come to a stop.
func Hold(t *testing.T, s *scene.Scene, at func(proxy.Write) bool) *Held {
	t.Helper()
	h := &Held{scene: s, stopped: make(chan error, 1), release: make(chan struct{})}
	h.Agent = startLeading(t, s, Hooks{Before: Once(at, func(a *Agent, w proxy.Write) error {
		h.write = w
		h.stopped <- a.Pause(t.Context())
		select {
		case <-h.release:
		case <-t.Context().Done():
		}
		return nil
	})}, agent.Options{})
	return h
}

// AwaitStopped waits until the leader has come to its stop.
func (h *Held) AwaitStopped(t *testing.T) {
	t.Helper()
	var err error
	require.True(t, scene.Await(t, func() bool {
		select {
		case err = <-h.stopped:
			return true
		default:
			return false
		}
	}), "the agent never made the write that was to be held")
	require.NoError(t, err)
}

// Next starts another agent, which takes over when the Lease of the frozen one
// has expired, and stays the leader: nobody starts it again.
func (h *Held) Next(t *testing.T) *Agent {
	t.Helper()
	was := Leader(t, h.scene)
	a := start(t, h.scene, Hooks{}, agent.Options{LeaseDuration: lasting})
	require.True(t, scene.Await(t, func() bool { l := Leader(t, h.scene); return l != "" && l != was }), "nobody took over from a frozen leader")
	return a
}

// LetGo passes the held write on, and returns what the API server answered; then
// the agent runs on, and is to end: it has lost its Lease.
func (h *Held) LetGo(t *testing.T) int {
	t.Helper()
	close(h.release)
	status := 0
	require.True(t, scene.Await(t, func() bool {
		for _, w := range h.Proxy.Writes() {
			if w.N == h.write.N {
				status = w.Status
			}
		}
		return status != 0
	}), "the held write was not answered: %s", h.write)
	require.NoError(t, h.Resume())
	require.True(t, scene.Await(t, h.Gone), "a leader that lost its Lease while it was frozen goes on")
	return status
}
