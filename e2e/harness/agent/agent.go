//go:build linux

// Package agent runs ot-agent as its chart installs it: see package program.
package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// Where the chart is installed.
const (
	AgentNamespace  = "ot-agent"
	PolicyNamespace = "sync-operator"
	PolicyName      = "sync-operator-policy"
)

// Agent is a running agent.
type Agent struct {
	*process.Process
	// MetricsURL serves its metrics.
	MetricsURL string
}

// AgentLeaseDuration of agents: a test that kills a leader need not wait long for the next
// one, and a leader that nobody starts again does not lose its Lease to a busy machine.
const AgentLeaseDuration = 8 * time.Second

var agentProgram = program.Program{Name: "ot-agent", Package: "agent", LeaseDuration: AgentLeaseDuration}

// Options of one agent.
type Options = program.Options

// AgentBinary builds the agent, once in this process, and returns its path.
func AgentBinary() (string, error) { return agentProgram.Binary("") }

// InstallAgent installs the agent's chart: kinds, rights, admission policies and the
// policy ConfigMap.
func InstallAgent(ctx context.Context, cp *controlplane.ControlPlane, values map[string]any) error {
	return agentProgram.Install(ctx, cp, values)
}

// StartAgent runs an agent against a control plane that its chart is installed in.
func StartAgent(ctx context.Context, cp *controlplane.ControlPlane, o Options) (*Agent, error) {
	o.Args = append([]string{"--metrics-secure=false"}, o.Args...)
	p, metrics, err := agentProgram.Start(ctx, cp, o)
	if err != nil {
		return nil, err
	}
	return &Agent{Process: p, MetricsURL: "http://" + metrics + "/metrics"}, nil
}

// ReadMetrics reads the agent's metrics, as text. It waits until they are served, which an
// agent that has ended does no more.
func (a *Agent) ReadMetrics(ctx context.Context) (string, error) {
	var body []byte
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if err := a.ExitError(); err != nil {
			return false, err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.MetricsURL, nil)
		if err != nil {
			return false, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false, nil
		}
		defer func() { _ = response.Body.Close() }()
		body, err = io.ReadAll(response.Body)
		return err == nil && bytes.Contains(body, []byte("ot_agent_")), nil
	})
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", a.MetricsURL, err)
	}
	return string(body), nil
}
