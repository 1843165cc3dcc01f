//go:build linux

package program

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
)

// AgentNamespace is where the agent's chart is installed.
const AgentNamespace = "ot-agent"

// AgentLeaseDuration is short, so that a test which kills a leader need not wait long for
// the next one, and long enough for a busy machine to renew.
const AgentLeaseDuration = 8 * time.Second

var agentProgram = Program{CheckoutProgram: binaries.AgentProgram, LeaseDuration: AgentLeaseDuration}

// Agent is a running agent.
type Agent struct {
	*process.Process
	// MetricsURL serves its metrics.
	MetricsURL string
}

// InstallAgent installs the agent's chart: CRDs, RBAC, admission policies and the policy
// ConfigMap.
func InstallAgent(ctx context.Context, cp *controlplane.ControlPlane, values map[string]any) error {
	return agentProgram.Install(ctx, cp, values)
}

// StartAgent runs an agent against a control plane with its chart installed.
func StartAgent(ctx context.Context, cp *controlplane.ControlPlane, o Options) (*Agent, error) {
	o.Args = append([]string{
		"--metrics-secure=false",
		"--data-source-namespaces=kubevirt-os-images,openshift-virtualization-os-images", // as by the chart
	}, o.Args...)
	p, metrics, err := agentProgram.Start(ctx, cp, o)
	if err != nil {
		return nil, err
	}
	return &Agent{Process: p, MetricsURL: "http://" + metrics + "/metrics"}, nil
}

// ReadMetrics returns the agent's metrics as text. It waits until they are served and
// fails when the agent has exited.
func (a *Agent) ReadMetrics(ctx context.Context) (string, error) {
	var body []byte
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
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
