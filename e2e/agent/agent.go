//go:build linux

// Package agent builds ot-agent, installs its chart and runs it as a process
// with exactly the rights of the chart's ServiceAccount.
package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/e2e/chart"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
	"github.com/pelotech/ot-fleet/e2e/process"
)

// Where the chart is installed.
const (
	Namespace       = "ot-agent"
	PolicyNamespace = "sync-operator"
	PolicyName      = "sync-operator-policy"
	serviceAccount  = "ot-agent"
)

// Options of one agent.
type Options struct {
	// Through changes the client configuration before the agent gets it, for one
	// that is to reach its API server through a proxy.
	Through func(*rest.Config)
	// LeaseDuration of the leader; by default 2 s, so that a test that kills it
	// need not wait long.
	LeaseDuration time.Duration
	// Log is the agent's log file; by default it is in the control plane's Dir.
	Log string
	// Args are added to the agent's own.
	Args []string
}

// Agent is a running agent.
type Agent struct {
	*process.Process
	// MetricsURL serves its metrics.
	MetricsURL string
}

// root is the top of the checkout.
func root() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("finding the module's folder: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

var build = sync.OnceValues(func() (string, error) {
	top, err := root()
	if err != nil {
		return "", err
	}
	dir, _, err := process.TempDir("ot-fleet-agent-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "ot-agent")
	cmd := exec.Command("go", "build", "-o", path, "./agent")
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building ot-agent: %w\n%s", err, out)
	}
	return path, nil
})

// Binary builds the agent, once in this process, and returns its path.
func Binary() (string, error) { return build() }

// Install installs the agent's chart: kinds, rights, admission policies and the
// policy ConfigMap. values are the chart's; the Deployment it also installs has
// no kubelet to run it.
func Install(ctx context.Context, cp *controlplane.ControlPlane, values map[string]any) error {
	top, err := root()
	if err != nil {
		return err
	}
	return chart.Install(ctx, cp.Config(), filepath.Join(top, "charts", "ot-agent"), "ot-agent", Namespace, values)
}

// Start runs an agent against a control plane that its chart is installed in.
func Start(ctx context.Context, cp *controlplane.ControlPlane, o Options) (*Agent, error) {
	binary, err := Binary()
	if err != nil {
		return nil, err
	}
	cfg, err := cp.ServiceAccountConfig(ctx, Namespace, serviceAccount)
	if err != nil {
		return nil, err
	}
	if o.Through != nil {
		o.Through(cfg)
	}
	kubeconfig, err := os.CreateTemp(cp.Dir(), "agent-*.kubeconfig")
	if err != nil {
		return nil, fmt.Errorf("making the agent's kubeconfig: %w", err)
	}
	_ = kubeconfig.Close()
	if err := controlplane.WriteKubeconfig(cfg, kubeconfig.Name()); err != nil {
		return nil, err
	}
	if o.LeaseDuration == 0 {
		o.LeaseDuration = 2 * time.Second
	}
	if o.Log == "" {
		o.Log = filepath.Join(cp.Dir(), "agent.log")
	}
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	metrics := fmt.Sprintf("127.0.0.1:%d", port)
	p, err := process.Start(process.Options{
		Path: binary,
		Args: append([]string{
			"--kubeconfig=" + kubeconfig.Name(),
			"--namespace=" + Namespace,
			"--metrics-bind-address=" + metrics,
			"--health-probe-bind-address=0",
			"--leader-elect-lease-duration=" + o.LeaseDuration.String(),
			"--leader-elect-renew-deadline=" + (o.LeaseDuration * 2 / 3).String(),
			"--leader-elect-retry-period=" + (o.LeaseDuration / 8).String(),
		}, o.Args...),
		LogFile: o.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("starting ot-agent: %w", err)
	}
	return &Agent{Process: p, MetricsURL: "http://" + metrics + "/metrics"}, nil
}

// Metrics reads the agent's metrics, as text. It waits until they are served.
func (a *Agent) Metrics(ctx context.Context) (string, error) {
	var body []byte
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
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
