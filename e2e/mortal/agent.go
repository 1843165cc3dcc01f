//go:build linux

// Package mortal has agents whose every write can be seen, held up and lost, and
// that can be killed or frozen at any of them.
package mortal

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

// Agent is one behind a proxy of its own.
type Agent struct {
	*agent.Agent
	Proxy *proxy.Proxy
	// started is closed once Agent is set: its first write may come before.
	started chan struct{}
}

// Hooks are called with an agent's writes, see package proxy.
type Hooks struct {
	Before, After func(*Agent, proxy.Write) error
}

// Run starts an agent.
func Run(ctx context.Context, s *scene.Scene, h Hooks, o agent.Options) (*Agent, error) {
	p, err := proxy.Start(s.ControlPlane.Config())
	if err != nil {
		return nil, err
	}
	a := &Agent{Proxy: p, started: make(chan struct{})}
	if h.Before != nil {
		p.Before(func(w proxy.Write) error { <-a.started; return h.Before(a, w) })
	}
	if h.After != nil {
		p.After(func(w proxy.Write) error { <-a.started; return h.After(a, w) })
	}
	o.Through, o.Log = p.Through, os.Getenv("OT_FLEET_AGENT_LOG")
	if a.Agent, err = agent.Start(ctx, s.ControlPlane, o); err != nil {
		_ = p.Close()
		return nil, err
	}
	close(a.started)
	return a, nil
}

// lasting is the LeaseDuration of a leader that is to stay the leader: on a busy machine
// a shorter one is lost now and then, and nobody would start the agent again.
const lasting = 30 * time.Second

// Start runs an agent until the test ends, at the latest.
func Start(t *testing.T, s *scene.Scene, h Hooks, args ...string) *Agent {
	t.Helper()
	return start(t, s, h, agent.Options{Args: args})
}

func start(t *testing.T, s *scene.Scene, h Hooks, o agent.Options) *Agent {
	t.Helper()
	a, err := Run(t.Context(), s, h, o)
	require.NoError(t, err)
	t.Cleanup(a.End)
	return a
}

// StartLeading starts an agent, and waits until it leads. Who is to take over from it
// need not wait for its Lease to expire: see Bury.
func StartLeading(t *testing.T, s *scene.Scene, h Hooks, args ...string) *Agent {
	t.Helper()
	return startLeading(t, s, h, agent.Options{LeaseDuration: lasting, Args: args})
}

func startLeading(t *testing.T, s *scene.Scene, h Hooks, o agent.Options) *Agent {
	t.Helper()
	require.NoError(t, Bury(t.Context(), s))
	a := start(t, s, h, o)
	require.True(t, scene.Await(t, func() bool { return Leader(t, s) != "" }), "no agent leads")
	return a
}

// End kills an agent and waits until it is gone.
func (a *Agent) End() {
	a.Kill()
	<-a.Done()
	_ = a.Proxy.Close()
}

// Gone tells whether an agent has ended.
func (a *Agent) Gone() bool {
	select {
	case <-a.Done():
		return true
	default:
		return false
	}
}

func lease() *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: agent.Namespace, Name: "ot-agent"}}
}

// Leader is who holds the Lease; empty for nobody.
func Leader(t *testing.T, s *scene.Scene) string {
	t.Helper()
	l := lease()
	if err := s.Client().Get(t.Context(), client.ObjectKeyFromObject(l), l); err != nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// Bury removes the Lease of an agent that is known to be dead, so that the next
// one need not wait for it to expire.
func Bury(ctx context.Context, s *scene.Scene) error { return BuryIn(ctx, s.Client()) }

// BuryIn is Bury for a cluster that is no scene.
func BuryIn(ctx context.Context, c client.Client) error {
	return client.IgnoreNotFound(c.Delete(ctx, lease()))
}

// Once calls a hook for the first write that matches, and lets all others pass.
func Once(matches func(proxy.Write) bool, then func(*Agent, proxy.Write) error) func(*Agent, proxy.Write) error {
	var done atomic.Bool
	return func(a *Agent, w proxy.Write) error {
		if !matches(w) || done.Swap(true) {
			return nil
		}
		return then(a, w)
	}
}
