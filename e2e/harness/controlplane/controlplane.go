//go:build linux

// Package controlplane runs real Kubernetes control planes (etcd, API server
// and, where wanted, controller-manager and scheduler) on loopback ports, many
// of them beside each other, without containers. There is no kubelet: pods run
// only where a member's simulated one plays them.
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

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
)

// Options choose what runs.
type Options struct {
	// Name tells control planes apart in logs and kubeconfigs.
	Name string
	// ControllerManager runs garbage collection and the namespace, service
	// account and volume controllers. Without it, service accounts are not
	// enforced on pods, since nobody would create them.
	ControllerManager bool
	// Controllers of the controller manager, if not all of those.
	Controllers []string
	Scheduler   bool
	// LogDir keeps the logs beyond Stop; by default they are in Dir.
	LogDir string
	// APIServerArgs are added to the API server's own.
	APIServerArgs []string
	// APIServerMemory is the soft limit of the API server's memory, as of
	// GOMEMLIMIT. The default fits many control planes onto one machine and is
	// too little for tens of thousands of objects.
	APIServerMemory string
	// APIServerGC is GOGC of the API server: more spends memory for CPU time.
	APIServerGC string
	// EtcdBytes is what etcd holds at the most, its history included; by default 256 MiB.
	EtcdBytes int64
	// BeforeControllers runs when the API server serves and before any controller starts.
	// It is the place for CRDs: the garbage collector looks for kinds when it
	// starts and then every 30 s only, and deletes nothing of owners it does not know.
	BeforeControllers func(context.Context, *rest.Config) error
}

// ControlPlane is one running control plane.
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

// Start runs a control plane and returns when it serves requests.
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
	if err := c.startEtcd(); err != nil {
		return nil, err
	}
	if err := c.startFirstAPIServer(ctx); err != nil {
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

// StartAll runs control planes beside each other; when one fails to start, the
// others are stopped.
func StartAll(ctx context.Context, options ...Options) ([]*ControlPlane, error) {
	return process.StartAll(ctx, Start, options)
}

// Name is the one it was started with.
func (c *ControlPlane) Name() string { return c.options.Name }

// Config returns a client configuration with all rights.
func (c *ControlPlane) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Kubeconfig is the path of a kubeconfig with all rights; it goes with Stop.
func (c *ControlPlane) Kubeconfig() string { return filepath.Join(c.dir, "admin.kubeconfig") }

// EtcdURL is where etcd serves, without credentials.
func (c *ControlPlane) EtcdURL() string { return c.etcdURL }

// Dir is its temporary directory; the logs are in it unless LogDir says otherwise.
func (c *ControlPlane) Dir() string { return c.dir }

// LogFile is the log of one of its programs.
func (c *ControlPlane) LogFile(name binaries.Name) string {
	return filepath.Join(c.options.LogDir, fmt.Sprintf("%s-%s.log", c.options.Name, name))
}

// Stop ends the controllers, then the API server, then etcd, waiting for each:
// in any other order they spend their grace periods on each other. A second
// call does nothing.
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

// StopAPIServer takes the API server away; etcd and the controllers stay.
func (c *ControlPlane) StopAPIServer() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.apiserver.Stop(stopTimeout); err != nil {
		return fmt.Errorf("stopping the API server of %s: %w", c.options.Name, err)
	}
	return nil
}

// KillAPIServer takes the API server away as a crash does, without a goodbye.
func (c *ControlPlane) KillAPIServer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apiserver.Kill()
	<-c.apiserver.Done()
}

// StartAPIServer brings the API server back on its port and returns when it
// serves. Controllers that ended in the meantime are started again too.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return fmt.Errorf("starting the API server of %s again: the control plane is stopped", c.options.Name)
	}
	if isRunning(c.apiserver) {
		return nil
	}
	if err := c.startAPIServer(ctx); err != nil {
		return fmt.Errorf("starting the API server of %s again: %w", c.options.Name, err)
	}
	return c.startControllers()
}

// PauseAPIServer freezes the API server: connections stay open and get no answer.
func (c *ControlPlane) PauseAPIServer(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.apiserver.Pause(ctx)
}

// ResumeAPIServer lets a paused API server go on.
func (c *ControlPlane) ResumeAPIServer() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.apiserver.Resume()
}

// ServiceAccountConfig returns a client configuration with exactly the rights
// of a service account, by a token that the API server issues for an hour.
func (c *ControlPlane) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	clients, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", c.options.Name, err)
	}
	token, err := clients.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
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
