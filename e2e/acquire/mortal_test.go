//go:build linux

package acquire

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// leaseDuration is short, so that a test need not wait long for the next leader.
const leaseDuration = 2 * time.Second

// mortal is an agent behind a proxy of its own.
type mortal struct {
	*agent.Agent
	proxy *proxy.Proxy
	// started is closed once Agent is set: its first write may come before.
	started chan struct{}
}

// hooks are called with an agent's writes, see package proxy.
type hooks struct {
	before, after func(*mortal, proxy.Write) error
}

func run(ctx context.Context, h hooks, args ...string) (*mortal, error) {
	p, err := proxy.Start(place.ControlPlane.Config())
	if err != nil {
		return nil, err
	}
	m := &mortal{proxy: p, started: make(chan struct{})}
	if h.before != nil {
		p.Before(func(w proxy.Write) error { <-m.started; return h.before(m, w) })
	}
	if h.after != nil {
		p.After(func(w proxy.Write) error { <-m.started; return h.after(m, w) })
	}
	m.Agent, err = agent.Start(ctx, place.ControlPlane, agent.Options{
		LeaseDuration: leaseDuration, Args: args, Through: p.Through, Log: os.Getenv("OT_FLEET_AGENT_LOG"),
	})
	if err != nil {
		_ = p.Close()
		return nil, err
	}
	close(m.started)
	return m, nil
}

// start runs an agent until the test ends, at the latest.
func start(t *testing.T, h hooks, args ...string) *mortal {
	t.Helper()
	m, err := run(t.Context(), h, args...)
	require.NoError(t, err)
	t.Cleanup(m.end)
	return m
}

// end kills an agent and waits until it is gone.
func (m *mortal) end() {
	m.Kill()
	<-m.Done()
	_ = m.proxy.Close()
}

func (m *mortal) gone() bool {
	select {
	case <-m.Done():
		return true
	default:
		return false
	}
}

func lease() *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: agent.Namespace, Name: "ot-agent"}}
}

// leader is who holds the Lease; empty for nobody.
func leader(t *testing.T) string {
	t.Helper()
	l := lease()
	if err := place.Client().Get(t.Context(), client.ObjectKeyFromObject(l), l); err != nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// bury removes the Lease of an agent that is known to be dead, so that the next
// one need not wait for it to expire.
func bury(ctx context.Context) error {
	return client.IgnoreNotFound(place.Client().Delete(ctx, lease()))
}

// startLeading starts an agent and waits until it leads.
func startLeading(t *testing.T, h hooks) *mortal {
	t.Helper()
	require.NoError(t, bury(t.Context()))
	m := start(t, h)
	require.True(t, scene.Await(t, func() bool { return leader(t) != "" }), "no agent leads")
	return m
}

// once calls a hook for the first write that matches, and lets all others pass.
func once(matches func(proxy.Write) bool, then func(*mortal, proxy.Write) error) func(*mortal, proxy.Write) error {
	var done atomic.Bool
	return func(m *mortal, w proxy.Write) error {
		if !matches(w) || done.Swap(true) {
			return nil
		}
		return then(m, w)
	}
}

// held is a leader that was frozen with one of its writes on the way to the API
// server.
type held struct {
	*mortal
	stopped chan error
	release chan struct{}
	write   proxy.Write
}

// holdLeader starts an agent that leads until it makes a certain write: there,
// write and agent come to a stop.
func holdLeader(t *testing.T, at func(proxy.Write) bool) *held {
	t.Helper()
	h := &held{stopped: make(chan error, 1), release: make(chan struct{})}
	h.mortal = startLeading(t, hooks{before: once(at, func(m *mortal, w proxy.Write) error {
		h.write = w
		h.stopped <- m.Pause(t.Context())
		select {
		case <-h.release:
		case <-t.Context().Done():
		}
		return nil
	})})
	return h
}

// awaitStopped waits until the leader has come to its stop.
func (h *held) awaitStopped(t *testing.T) {
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

// next starts another agent, which takes over when the Lease of a frozen one has
// expired.
func next(t *testing.T) *mortal {
	t.Helper()
	was := leader(t)
	m := start(t, hooks{})
	require.True(t, scene.Await(t, func() bool { l := leader(t); return l != "" && l != was }), "nobody took over from a frozen leader")
	return m
}

// letGo passes the held write on, and returns what the API server answered; then
// the agent runs on, and is to end: it has lost its Lease.
func (h *held) letGo(t *testing.T) int {
	t.Helper()
	close(h.release)
	status := 0
	require.True(t, scene.Await(t, func() bool {
		for _, w := range h.proxy.Writes() {
			if w.N == h.write.N {
				status = w.Status
			}
		}
		return status != 0
	}), "the held write was not answered: %s", h.write)
	require.NoError(t, h.Resume())
	require.True(t, scene.Await(t, h.gone), "a leader that lost its Lease while it was frozen goes on")
	return status
}
