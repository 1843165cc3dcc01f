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

	"github.com/pelotech/ot-fleet/e2e/controlplane"
	"github.com/pelotech/ot-fleet/e2e/process"
	"github.com/pelotech/ot-fleet/e2e/program"
)

// Where the chart is installed.
const (
	Namespace       = "ot-agent"
	PolicyNamespace = "sync-operator"
	PolicyName      = "sync-operator-policy"
)

// Agent is a running agent.
type Agent struct {
	*process.Process
	// MetricsURL serves its metrics.
	MetricsURL string
}

// LeaseDuration of agents: a test that kills a leader need not wait long for the next
// one, and a leader that nobody starts again does not lose its Lease to a busy machine.
const LeaseDuration = 8 * time.Second

var agent = program.Program{Name: "ot-agent", Package: "agent", LeaseDuration: LeaseDuration}

// Options of one agent.
type Options = program.Options

// Binary builds the agent, once in this process, and returns its path.
func Binary() (string, error) { return agent.Binary("") }

// Install installs the agent's chart: kinds, rights, admission policies and the
// policy ConfigMap.
func Install(ctx context.Context, cp *controlplane.ControlPlane, values map[string]any) error {
	return agent.Install(ctx, cp, values)
}

// Start runs an agent against a control plane that its chart is installed in.
func Start(ctx context.Context, cp *controlplane.ControlPlane, o Options) (*Agent, error) {
	o.Args = append([]string{"--metrics-secure=false"}, o.Args...)
	p, metrics, err := agent.Start(ctx, cp, o)
	if err != nil {
		return nil, err
	}
	return &Agent{Process: p, MetricsURL: "http://" + metrics + "/metrics"}, nil
}

// Metrics reads the agent's metrics, as text. It waits until they are served, which an
// agent that has ended does no more.
func (a *Agent) Metrics(ctx context.Context) (string, error) {
	var body []byte
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if err := a.Ended(); err != nil {
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
