//go:build linux

// Package controlplane runs real Kubernetes control planes without containers: etcd, API server
// and optionally controller-manager and scheduler, on loopback ports, many side by side. There
// is no kubelet: only a member's simulated node runs pods.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
)

// Patience bounds every wait of a test. It is long, because a busy machine is no failure.
const Patience = 3 * time.Minute

// Options describe a control plane.
type Options struct {
	// Name tells control planes apart in logs and kubeconfigs.
	Name string
	// ControllerManager runs garbage collection and the namespace, service account and volume
	// controllers. Without it, pods need no service account.
	ControllerManager bool
	// Controllers selects controllers of the controller manager; empty for all of these.
	Controllers []string
	Scheduler   bool
	// LogDir holds the logs, also after Stop; by default Dir.
	LogDir string
	// APIServerArgs are added to the API server's flags.
	APIServerArgs []string
	// APIServerHeapMiB is process.Options.HeapMiB of the API server. The default suits many
	// control planes on one machine, not tens of thousands of objects.
	APIServerHeapMiB int64
	// EtcdBytes is etcd's quota, history included; by default 256 MiB.
	EtcdBytes int64
	// BeforeControllers runs when the API server is ready and before any controller starts. It is
	// the place for CRDs: the garbage collector discovers kinds when it starts and every 30 s,
	// and deletes nothing whose owner's kind it does not know.
	BeforeControllers func(context.Context, *rest.Config) error
}

// ControlPlane is a running control plane.
type ControlPlane struct {
	options     Options
	paths       binaries.Paths
	dir         string
	removeDir   func() error
	credentials *credentials
	etcdURL     string
	port        int
	config      *rest.Config

	mu                                            sync.Mutex
	etcd, apiserver, controllerManager, scheduler *process.Process
	stopped                                       bool
	cancelInterrupt                               func()
}

const stopTimeout = 2 * time.Minute

// Start runs a control plane and returns when it is ready.
func Start(ctx context.Context, o Options) (_ *ControlPlane, err error) {
	if o.Name == "" {
		o.Name = "control-plane"
	}
	names := []binaries.Name{binaries.Etcd, binaries.APIServer}
	if o.ControllerManager {
		names = append(names, binaries.ControllerManager)
	}
	if o.Scheduler {
		names = append(names, binaries.Scheduler)
	}
	paths, err := binaries.Ensure(ctx, names...)
	if err != nil {
		return nil, err
	}
	dir, removeDir, err := process.TempDir("ot-fleet-" + o.Name + "-")
	if err != nil {
		return nil, err
	}
	c := &ControlPlane{options: o, paths: paths, dir: dir, removeDir: removeDir}
	c.cancelInterrupt = process.AtInterrupt(func() { _ = c.Stop() })
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("starting control plane %s: %w", o.Name, err), c.Stop())
		}
	}()
	if c.options.LogDir == "" {
		c.options.LogDir = dir
	}
	if err := os.MkdirAll(c.options.LogDir, 0o755); err != nil {
		return nil, fmt.Errorf("making the log directory: %w", err)
	}
	if c.credentials, err = newCredentials(dir); err != nil {
		return nil, err
	}
	if err := c.startServers(ctx); err != nil {
		return nil, err
	}
	if err := WriteKubeconfig(c.config, c.Kubeconfig()); err != nil {
		return nil, err
	}
	if o.BeforeControllers != nil {
		if err := o.BeforeControllers(ctx, c.Config()); err != nil {
			return nil, err
		}
	}
	return c, c.startControllers()
}

// startServers starts etcd and the API server when it is their turn.
func (c *ControlPlane) startServers(ctx context.Context) error {
	end, err := process.TakeTurn(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := c.startEtcd(); err != nil {
		return err
	}
	return c.startFirstAPIServer(ctx)
}

// StartAll runs control planes side by side. If one fails to start, the others are stopped.
func StartAll(ctx context.Context, options ...Options) ([]*ControlPlane, error) {
	return process.StartAll(ctx, Start, options)
}

// Name returns Options.Name.
func (c *ControlPlane) Name() string { return c.options.Name }

// Config returns a client configuration with all permissions.
func (c *ControlPlane) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Kubeconfig returns the path of a kubeconfig with all permissions, which Stop deletes.
func (c *ControlPlane) Kubeconfig() string { return filepath.Join(c.dir, "admin.kubeconfig") }

// EtcdURL returns the URL of etcd, which needs no credentials.
func (c *ControlPlane) EtcdURL() string { return c.etcdURL }

// Dir returns the temporary directory of the control plane, with its logs unless LogDir is set.
func (c *ControlPlane) Dir() string { return c.dir }

// LogFile returns the path of the log of a program.
func (c *ControlPlane) LogFile(name binaries.Name) string {
	return filepath.Join(c.options.LogDir, fmt.Sprintf("%s-%s.log", c.options.Name, name))
}

// Stop ends the controllers, then the API server, then etcd, and waits for each: in another
// order they wait for each other. A second call does nothing.
func (c *ControlPlane) Stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil
	}
	c.stopped = true
	c.cancelInterrupt()
	var errs []error
	for _, p := range []*process.Process{c.scheduler, c.controllerManager, c.apiserver, c.etcd} {
		if p != nil {
			errs = append(errs, p.Stop(stopTimeout))
		}
	}
	errs = append(errs, c.removeDir())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stopping control plane %s: %w", c.options.Name, err)
	}
	return nil
}

// StopAPIServer stops the API server; etcd and the controllers stay.
func (c *ControlPlane) StopAPIServer() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.apiserver.Stop(stopTimeout); err != nil {
		return fmt.Errorf("stopping the API server of %s: %w", c.options.Name, err)
	}
	return nil
}

// KillAPIServer kills the API server, as a crash does.
func (c *ControlPlane) KillAPIServer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apiserver.Kill()
	<-c.apiserver.Done()
}

// StartAPIServer restarts the API server on its port and returns when it is ready. It restarts
// controllers that have exited, too.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return fmt.Errorf("restarting the API server of %s: the control plane is stopped", c.options.Name)
	}
	if isRunning(c.apiserver) {
		return nil
	}
	if err := c.startAPIServer(ctx); err != nil {
		return fmt.Errorf("restarting the API server of %s: %w", c.options.Name, err)
	}
	return c.startControllers()
}

// ListEnded returns the logs of the programs that have exited.
func (c *ControlPlane) ListEnded() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return process.ListEnded(c.etcd, c.apiserver, c.controllerManager, c.scheduler)
}

// PauseAPIServer freezes the API server: connections stay open and get no answer.
func (c *ControlPlane) PauseAPIServer(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.apiserver.Pause(ctx)
}

// ResumeAPIServer resumes a paused API server.
func (c *ControlPlane) ResumeAPIServer() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.apiserver.Resume()
}

// ServiceAccountConfig returns a client configuration with the permissions of a service account.
// Its token is valid for as long as the control plane's certificates.
func (c *ControlPlane) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	clients, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", c.options.Name, err)
	}
	token, err := clients.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(credentialLifetime.Seconds()))},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("requesting a token of service account %s/%s on %s (does it exist?): %w", namespace, name, c.options.Name, err)
	}
	config := rest.AnonymousClientConfig(c.config)
	config.QPS, config.Burst = c.config.QPS, c.config.Burst
	config.BearerToken = token.Status.Token
	return config, nil
}

func isRunning(p *process.Process) bool {
	if p == nil {
		return false
	}
	select {
	case <-p.Done():
		return false
	default:
		return true
	}
}
