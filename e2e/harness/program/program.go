//go:build linux

// Package program builds ot-agent and ot-hub, installs their charts and runs them as
// processes with exactly the permissions of the chart's ServiceAccount. It reads what the
// hub serves.
package program

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/chart"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
)

// The policy ConfigMap, in members and on the hub.
const (
	PolicyNamespace = "sync-operator"
	PolicyName      = "sync-operator-policy"
)

const pollInterval = 50 * time.Millisecond

// Program is the agent or the hub.
type Program struct {
	// Its Name is also that of the chart, the release, its namespace and its ServiceAccount.
	binaries.CheckoutProgram
	// LeaseDuration of the leader, unless Options say otherwise.
	LeaseDuration time.Duration

	mu       sync.Mutex
	binaries map[builtFrom]string
}

// builtFrom is the folder of a checkout and the version that is stamped into a program.
type builtFrom struct{ checkout, version string }

// StableLease is one that no stall of a busy machine makes its leader lose: it would exit, and no
// kubelet restarts it. Who starts with it takes the Lease from a program that is dead.
const StableLease = time.Hour

// LongLease is longer than a busy machine stalls, and short enough to wait for: the Leases of a hub's
// replicas, which nobody takes over, are as long.
const LongLease = time.Minute

// Options of one process.
type Options struct {
	// ConfigureClient changes the program's client configuration, such as to route it
	// through a proxy.
	ConfigureClient func(*rest.Config)
	// LeaseDuration of the leader. StableLease is for a program that no other one waits for.
	LeaseDuration time.Duration
	// Log is the log file; by default in the control plane's Dir.
	Log string
	// Version is stamped into the binary; empty for a development build.
	Version string
	// UI: a hub serves the dashboard.
	UI bool
	// Args are added to the default flags, Env to this process's environment.
	Args, Env []string
}

// otherCheckout is where programs and charts come from; empty: from this checkout.
var otherCheckout atomic.Pointer[string]

// UseCheckout has programs and charts come from another checkout from now on, with its own
// CustomResourceDefinitions; an empty folder: from this one again.
func UseCheckout(folder string) { otherCheckout.Store(&folder) }

// findCheckout returns the root of the checkout, and whether it is another one than this.
func findCheckout() (top string, other bool, err error) {
	if other := otherCheckout.Load(); other != nil && *other != "" {
		return *other, true, nil
	}
	top, err = binaries.FindCheckout()
	return top, false, err
}

// Binary builds the program, once in this process for each version and checkout, and returns its path:
// see binaries.CheckoutProgram. That of this checkout without a version may be built already, for the
// whole run of tests.
func (p *Program) Binary(version string) (string, error) {
	top, other, err := findCheckout()
	if err != nil {
		return "", err
	}
	if !other && version == p.Version {
		if path, err := p.FindPrebuilt(); err != nil || path != "" {
			return path, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	from := builtFrom{top, version}
	if built := p.binaries[from]; built != "" {
		return built, nil
	}
	built, err := p.buildVersion(top, version)
	if err != nil {
		return "", err
	}
	if p.binaries == nil {
		p.binaries = map[builtFrom]string{}
	}
	p.binaries[from] = built
	return built, nil
}

func (p *Program) buildVersion(top, version string) (string, error) {
	dir, _, err := process.TempDir("ot-fleet-" + p.Name + "-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, p.Name)
	return path, p.Build(context.Background(), top, version, path)
}

// Install installs the chart with its values. No kubelet runs its Deployment.
func (p *Program) Install(ctx context.Context, cp *controlplane.ControlPlane, values map[string]any) error {
	top, _, err := findCheckout()
	if err != nil {
		return err
	}
	return chart.Install(ctx, cp.Config(), filepath.Join(top, "charts", p.Name), p.Name, p.Name, values)
}

// Start runs the program against a control plane with its chart installed. metrics is the
// address of its metrics, as host:port.
func (p *Program) Start(ctx context.Context, cp *controlplane.ControlPlane, o Options) (_ *process.Process, metrics string, err error) {
	binary, err := p.Binary(o.Version)
	if err != nil {
		return nil, "", err
	}
	cfg, err := cp.ServiceAccountConfig(ctx, p.Name, p.Name)
	if err != nil {
		return nil, "", err
	}
	if o.ConfigureClient != nil {
		o.ConfigureClient(cfg)
	}
	kubeconfig, err := os.CreateTemp(cp.Dir(), p.Name+"-*.kubeconfig")
	if err != nil {
		return nil, "", fmt.Errorf("making the kubeconfig of %s: %w", p.Name, err)
	}
	_ = kubeconfig.Close()
	if err := controlplane.WriteKubeconfig(cfg, kubeconfig.Name()); err != nil {
		return nil, "", err
	}
	if o.LeaseDuration == 0 {
		o.LeaseDuration = p.LeaseDuration
	}
	if o.LeaseDuration == StableLease {
		if err := p.takeOverLease(ctx, cp.Config()); err != nil {
			return nil, "", err
		}
	}
	if o.Log == "" {
		o.Log = filepath.Join(cp.Dir(), p.Name+".log")
	}
	port, err := process.FreePort()
	if err != nil {
		return nil, "", err
	}
	metrics = fmt.Sprintf("127.0.0.1:%d", port)
	started, err := process.Start(process.Options{
		Path: binary,
		Args: append([]string{
			"--kubeconfig=" + kubeconfig.Name(),
			"--namespace=" + p.Name,
			"--metrics-bind-address=" + metrics,
			"--health-probe-bind-address=0",
			"--leader-elect-lease-duration=" + o.LeaseDuration.String(),
			"--leader-elect-renew-deadline=" + (o.LeaseDuration - min(o.LeaseDuration/3, 5*time.Second)).String(),
			"--leader-elect-retry-period=" + min(o.LeaseDuration/8, 5*time.Second).String(),
		}, o.Args...),
		Env:     o.Env,
		LogFile: o.Log,
	})
	if err != nil {
		return nil, "", fmt.Errorf("starting %s: %w", p.Name, err)
	}
	return started, metrics, nil
}
