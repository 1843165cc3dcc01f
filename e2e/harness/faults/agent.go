//go:build linux

package faults

import (
	"context"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// FaultyAgent is an agent behind a proxy of its own.
type FaultyAgent struct {
	*program.Agent
	Proxy *Proxy
	// started is closed once Agent is set: the agent's first write may come before.
	started chan struct{}
}

// WriteHooks are called with an agent's writes; see Hook.
type WriteHooks struct {
	Before, After func(*FaultyAgent, Write) error
}

// RunAgent starts an agent behind a proxy.
func RunAgent(ctx context.Context, s *testenv.Env, h WriteHooks, o program.Options) (*FaultyAgent, error) {
	p, err := StartProxy(s.ControlPlane.Config())
	if err != nil {
		return nil, err
	}
	a := &FaultyAgent{Proxy: p, started: make(chan struct{})}
	if h.Before != nil {
		p.SetBeforeHook(func(w Write) error { <-a.started; return h.Before(a, w) })
	}
	if h.After != nil {
		p.SetAfterHook(func(w Write) error { <-a.started; return h.After(a, w) })
	}
	o.ConfigureClient, o.Log = p.Redirect, os.Getenv("OT_FLEET_AGENT_LOG")
	if a.Agent, err = program.StartAgent(ctx, s.ControlPlane, o); err != nil {
		_ = p.Close()
		return nil, err
	}
	close(a.started)
	return a, nil
}

// StartAgent runs an agent until the test ends at the latest.
func StartAgent(t *testing.T, s *testenv.Env, h WriteHooks, args ...string) *FaultyAgent {
	t.Helper()
	return startAgent(t, s, h, program.Options{Args: args})
}

func startAgent(t *testing.T, s *testenv.Env, h WriteHooks, o program.Options) *FaultyAgent {
	t.Helper()
	a, err := RunAgent(t.Context(), s, h, o)
	require.NoError(t, err)
	t.Cleanup(a.KillAndWait)
	return a
}

// StartLeader starts an agent and waits until it leads. A successor deletes its Lease
// rather than waiting for it to expire.
func StartLeader(t *testing.T, s *testenv.Env, h WriteHooks, args ...string) *FaultyAgent {
	t.Helper()
	return startLeader(t, s, h, program.Options{LeaseDuration: program.StableLease, Args: args})
}

func startLeader(t *testing.T, s *testenv.Env, h WriteHooks, o program.Options) *FaultyAgent {
	t.Helper()
	require.NoError(t, program.DeleteAgentLease(t.Context(), s.Client()))
	a := startAgent(t, s, h, o)
	require.True(t, testenv.AwaitCondition(t, func() bool { return program.AgentLeaseHolder(t.Context(), s.Client()) != "" }), "no agent leads")
	return a
}

// KillAndWait kills the agent and waits until it has exited.
func (a *FaultyAgent) KillAndWait() {
	a.Kill()
	<-a.Done()
	_ = a.Proxy.Close()
}

// OnFirst calls a hook with the first write that matches only.
func OnFirst(matches func(Write) bool, then func(*FaultyAgent, Write) error) func(*FaultyAgent, Write) error {
	var done atomic.Bool
	return func(a *FaultyAgent, w Write) error {
		if !matches(w) || done.Swap(true) {
			return nil
		}
		return then(a, w)
	}
}
