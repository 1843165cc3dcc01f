//go:build linux

// Package hub builds ot-hub, installs its chart and runs it as a process with
// exactly the rights of the chart's ServiceAccount.
package hub

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/chart"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
	"github.com/pelotech/ot-fleet/e2e/process"
)

// Where the chart is installed.
const (
	Namespace       = "ot-hub"
	PolicyNamespace = "sync-operator"
	PolicyName      = "sync-operator-policy"
	serviceAccount  = "ot-hub"
)

// Options of one hub.
type Options struct {
	// Through changes the client configuration before the hub gets it, for one
	// that is to reach its API server through a proxy.
	Through func(*rest.Config)
	// LeaseDuration of the leader; by default 15 s, as in a real cluster: a shorter
	// one is lost now and then on a busy machine.
	LeaseDuration time.Duration
	// Log is the hub's log file; by default it is in the control plane's Dir.
	Log string
	// Args are added to the hub's own.
	Args []string
}

// Hub is a running hub.
type Hub struct {
	*process.Process
	// MetricsURL serves its metrics, APIURL is what the paths of its read API are
	// below.
	MetricsURL string
	APIURL     string
	reader     *reader
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
	dir, _, err := process.TempDir("ot-fleet-hub-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "ot-hub")
	cmd := exec.Command("go", "build", "-o", path, "./hub")
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building ot-hub: %w\n%s", err, out)
	}
	return path, nil
})

// Binary builds the hub, once in this process, and returns its path.
func Binary() (string, error) { return build() }

// Install installs the hub's chart: kinds, rights and the policy ConfigMap.
// values are the chart's; the Deployment it also installs has no kubelet to run
// it.
func Install(ctx context.Context, cp *controlplane.ControlPlane, values map[string]any) error {
	top, err := root()
	if err != nil {
		return err
	}
	return chart.Install(ctx, cp.Config(), filepath.Join(top, "charts", "ot-hub"), "ot-hub", Namespace, values)
}

// Start runs a hub against a control plane that its chart is installed in.
func Start(ctx context.Context, cp *controlplane.ControlPlane, o Options) (*Hub, error) {
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
	kubeconfig, err := os.CreateTemp(cp.Dir(), "hub-*.kubeconfig")
	if err != nil {
		return nil, fmt.Errorf("making the hub's kubeconfig: %w", err)
	}
	_ = kubeconfig.Close()
	if err := controlplane.WriteKubeconfig(cfg, kubeconfig.Name()); err != nil {
		return nil, err
	}
	if o.LeaseDuration == 0 {
		o.LeaseDuration = 15 * time.Second
	}
	if o.Log == "" {
		o.Log = filepath.Join(cp.Dir(), "hub.log")
	}
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	p, err := process.Start(process.Options{
		Path: binary,
		Args: append([]string{
			"--kubeconfig=" + kubeconfig.Name(),
			"--namespace=" + Namespace,
			"--metrics-bind-address=" + address,
			"--health-probe-bind-address=0",
			"--leader-elect-lease-duration=" + o.LeaseDuration.String(),
			"--leader-elect-renew-deadline=" + (o.LeaseDuration * 2 / 3).String(),
			"--leader-elect-retry-period=" + (o.LeaseDuration / 8).String(),
		}, o.Args...),
		LogFile: o.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("starting ot-hub: %w", err)
	}
	h := &Hub{Process: p, APIURL: "https://" + address}
	h.MetricsURL = h.APIURL + "/metrics"
	h.reader = newReader(h, cp.Config().BearerToken)
	return h, nil
}

// Join has a hub find a member by a kubeconfig Secret with the label of that
// name.
func Join(ctx context.Context, hub client.Client, member string, cfg *rest.Config) error {
	kubeconfig, err := controlplane.Kubeconfig(cfg)
	if err != nil {
		return err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: member, Labels: map[string]string{v1alpha1.LabelMember: member}},
		Data:       map[string][]byte{"kubeconfig": kubeconfig},
	}
	if err := hub.Create(ctx, secret); err != nil {
		return fmt.Errorf("joining member %s: creating Secret %s/%s: %w", member, Namespace, member, err)
	}
	return nil
}

// ErrNotServed is what the read API answers with while a hub starts.
var ErrNotServed = errors.New("the hub does not serve its read API yet")
