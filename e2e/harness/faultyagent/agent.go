//go:build linux

// Package faultyagent has agents whose every write can be seen, held up and lost, and
// that can be killed or frozen at any of them.
package faultyagent

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

	"github.com/pelotech/ot-fleet/e2e/harness/agent"
	"github.com/pelotech/ot-fleet/e2e/harness/proxy"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// FaultyAgent is one behind a proxy of its own.
type FaultyAgent struct {
	*agent.Agent
	Proxy *proxy.Proxy
	// started is closed once Agent is set: its first write may come before.
	started chan struct{}
}

// WriteHooks are called with an agent's writes, see package proxy.
type WriteHooks struct {
	Before, After func(*FaultyAgent, proxy.Write) error
}

// RunAgent starts an agent.
func RunAgent(ctx context.Context, s *testenv.Env, h WriteHooks, o agent.Options) (*FaultyAgent, error) {
	p, err := proxy.StartProxy(s.ControlPlane.Config())
	if err != nil {
		return nil, err
	}
	a := &FaultyAgent{Proxy: p, started: make(chan struct{})}
	if h.Before != nil {
		p.SetBeforeHook(func(w proxy.Write) error { <-a.started; return h.Before(a, w) })
	}
	if h.After != nil {
		p.SetAfterHook(func(w proxy.Write) error { <-a.started; return h.After(a, w) })
	}
	o.ConfigureClient, o.Log = p.Redirect, os.Getenv("OT_FLEET_AGENT_LOG")
	if a.Agent, err = agent.StartAgent(ctx, s.ControlPlane, o); err != nil {
		_ = p.Close()
		return nil, err
	}
	close(a.started)
	return a, nil
}

// stableLeaseDuration is the LeaseDuration of a leader that is to stay the leader: on a busy machine
// a shorter one is lost now and then, and nobody would start the agent again.
const stableLeaseDuration = 30 * time.Second

// StartAgent runs an agent until the test ends, at the latest.
func StartAgent(t *testing.T, s *testenv.Env, h WriteHooks, args ...string) *FaultyAgent {
	t.Helper()
	return startAgent(t, s, h, agent.Options{Args: args})
}

func startAgent(t *testing.T, s *testenv.Env, h WriteHooks, o agent.Options) *FaultyAgent {
	t.Helper()
	a, err := RunAgent(t.Context(), s, h, o)
	require.NoError(t, err)
	t.Cleanup(a.KillAndWait)
	return a
}

// StartLeader starts an agent, and waits until it leads. Who is to take over from it
// need not wait for its Lease to expire: see Bury.
func StartLeader(t *testing.T, s *testenv.Env, h WriteHooks, args ...string) *FaultyAgent {
	t.Helper()
	return startLeader(t, s, h, agent.Options{LeaseDuration: stableLeaseDuration, Args: args})
}

func startLeader(t *testing.T, s *testenv.Env, h WriteHooks, o agent.Options) *FaultyAgent {
	t.Helper()
	require.NoError(t, DeleteLease(t.Context(), s))
	a := startAgent(t, s, h, o)
	require.True(t, testenv.Await(t, func() bool { return LeaseHolder(t, s) != "" }), "no agent leads")
	return a
}

// KillAndWait kills an agent and waits until it is gone.
func (a *FaultyAgent) KillAndWait() {
	a.Kill()
	<-a.Done()
	_ = a.Proxy.Close()
}

// HasEnded tells whether an agent has ended.
func (a *FaultyAgent) HasEnded() bool {
	select {
	case <-a.Done():
		return true
	default:
		return false
	}
}

func newLease() *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: agent.AgentNamespace, Name: "ot-agent"}}
}

// LeaseHolder is who holds the Lease; empty for nobody.
func LeaseHolder(t *testing.T, s *testenv.Env) string {
	t.Helper()
	l := newLease()
	if err := s.Client().Get(t.Context(), client.ObjectKeyFromObject(l), l); err != nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// DeleteLease removes the Lease of an agent that is known to be dead, so that the next
// one need not wait for it to expire.
func DeleteLease(ctx context.Context, s *testenv.Env) error { return DeleteLeaseIn(ctx, s.Client()) }

// DeleteLeaseIn is Bury for a cluster that is no scene.
func DeleteLeaseIn(ctx context.Context, c client.Client) error {
	return client.IgnoreNotFound(c.Delete(ctx, newLease()))
}

// OnFirst calls a hook for the first write that matches, and lets all others pass.
func OnFirst(matches func(proxy.Write) bool, then func(*FaultyAgent, proxy.Write) error) func(*FaultyAgent, proxy.Write) error {
	var done atomic.Bool
	return func(a *FaultyAgent, w proxy.Write) error {
		if !matches(w) || done.Swap(true) {
			return nil
		}
		return then(a, w)
	}
}
