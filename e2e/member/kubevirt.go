//go:build linux

package member

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/binaries"
	"github.com/pelotech/ot-fleet/e2e/process"
	"github.com/pelotech/ot-fleet/e2e/simulator"
)

const (
	kubeVirtNamespace = "kubevirt"
	kubeVirtName      = "kubevirt"
	kubeVirtLease     = "virt-controller"
	kubeVirtTimeout   = 60 * time.Second
)

// InstallKubeVirt installs KubeVirt in a member that was started without it,
// and returns when it is ready: its kinds, the KubeVirt object, virt-controller,
// and the simulated virt-handler.
func (m *Member) InstallKubeVirt(ctx context.Context) error {
	if err := m.installKinds(ctx, Options{WithoutCDI: true, WithoutSnapshots: true, KubeVirt: true}, binaries.KubeVirt); err != nil {
		return fmt.Errorf("installing KubeVirt in member %s: %w", m.options.Name, err)
	}
	return m.deployKubeVirt(ctx)
}

// deployKubeVirt is what there is to do once KubeVirt's kinds are served.
func (m *Member) deployKubeVirt(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("deploying KubeVirt in member %s: %w", m.options.Name, err)
		}
	}()
	if err := m.prepareKubeVirt(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	if m.handler == nil {
		m.handler, err = simulator.StartVirtHandler(ctx, m.client, m.simulated(), m.options.Instant)
	}
	m.mu.Unlock()
	if err != nil {
		return err
	}
	if err := m.StartKubeVirt(); err != nil {
		return err
	}
	return m.waitForKubeVirt(ctx)
}

// prepareKubeVirt makes what virt-operator would have made.
func (m *Member) prepareKubeVirt(ctx context.Context) error {
	installed := &kubevirtv1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: kubeVirtNamespace, Name: kubeVirtName}}
	for _, object := range []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: kubeVirtNamespace}}, installed} {
		if err := m.client.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating %T %s: %w", object, object.GetName(), err)
		}
	}
	old := &kubevirtv1.KubeVirt{ObjectMeta: installed.ObjectMeta}
	installed = old.DeepCopy()
	installed.Status.Phase = kubevirtv1.KubeVirtPhaseDeployed
	for _, kind := range []kubevirtv1.KubeVirtConditionType{kubevirtv1.KubeVirtConditionAvailable, kubevirtv1.KubeVirtConditionCreated} {
		installed.Status.Conditions = append(installed.Status.Conditions, kubevirtv1.KubeVirtCondition{Type: kind, Status: corev1.ConditionTrue})
	}
	if err := m.client.Status().Patch(ctx, installed, client.MergeFrom(old)); err != nil {
		return fmt.Errorf("saying that KubeVirt is deployed: %w", err)
	}
	return nil
}

// StartKubeVirt starts virt-controller where it does not run.
func (m *Member) StartKubeVirt() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kubevirt != nil {
		select {
		case <-m.kubevirt.Done():
		default:
			return nil
		}
	}
	paths, err := binaries.Ensure(context.Background(), binaries.KubeVirt)
	if err != nil {
		return err
	}
	// It watches this directory, so nothing else may be written there.
	dir := filepath.Join(m.ControlPlane.Dir(), "virt-controller")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the directory of virt-controller's certificate: %w", err)
	}
	m.kubevirt, err = process.Start(process.Options{
		Path: paths[binaries.KubeVirt], LogFile: m.LogFile(binaries.KubeVirt), Env: []string{"GOMEMLIMIT=128MiB"},
		Args: []string{
			"--kubeconfig=" + m.ControlPlane.Kubeconfig(), "--listen=127.0.0.1", "--port=0",
			"--prom-cert-file=" + filepath.Join(dir, "tls.crt"), "--prom-key-file=" + filepath.Join(dir, "tls.key"),
			// Nobody else wants to lead; losing the lease for an API server that
			// is away would end it, and nothing starts it anew.
			"--leader-elect-lease-duration=48h", "--leader-elect-renew-deadline=24h",
		},
	})
	return err
}

// StopKubeVirt takes virt-controller away; machines and their pods run on.
func (m *Member) StopKubeVirt() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kubevirt == nil {
		return nil
	}
	return m.kubevirt.Stop(stopTimeout)
}

func (m *Member) waitForKubeVirt(ctx context.Context) error {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, kubeVirtTimeout, true, func(ctx context.Context) (bool, error) {
		select {
		case <-m.kubevirt.Done():
			return false, fmt.Errorf("virt-controller ended (%w)", m.kubevirt.Wait())
		default:
		}
		var lease coordinationv1.Lease
		err := m.client.Get(ctx, client.ObjectKey{Namespace: kubeVirtNamespace, Name: kubeVirtLease}, &lease)
		return err == nil && ptr.Deref(lease.Spec.HolderIdentity, "") != "", client.IgnoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("waiting for virt-controller to lead (log %s): %w", m.LogFile(binaries.KubeVirt), err)
	}
	return nil
}

// VirtHandler is the simulated one; nil where KubeVirt is not installed.
func (m *Member) VirtHandler() *simulator.VirtHandler {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.handler
}

func (m *Member) stopKubeVirt() error {
	var errs []error
	if m.kubevirt != nil {
		errs = append(errs, m.kubevirt.Stop(stopTimeout))
	}
	if m.handler != nil {
		errs = append(errs, m.handler.Stop())
	}
	return errors.Join(errs...)
}
