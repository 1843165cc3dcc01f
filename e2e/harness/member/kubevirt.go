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
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
)

const (
	kubeVirtNamespace = "kubevirt"
	kubeVirtName      = "kubevirt"
	kubeVirtLease     = "virt-controller"
)

// InstallKubeVirt installs KubeVirt in a member that was started without it, and waits until it is
// ready: CRDs, the KubeVirt object, virt-controller, the admission webhooks of virt-api, and the
// simulated virt-handler.
func (m *Member) InstallKubeVirt(ctx context.Context) error {
	if err := m.installCRDs(ctx, Options{WithoutCDI: true, WithoutSnapshots: true, KubeVirt: true}, kubeVirtPrograms(m.options)...); err != nil {
		return fmt.Errorf("installing KubeVirt in member %s: %w", m.options.Name, err)
	}
	return m.deployKubeVirt(ctx)
}

func kubeVirtPrograms(o Options) []binaries.Name {
	if o.InstantImporter {
		return []binaries.Name{binaries.KubeVirt}
	}
	return []binaries.Name{binaries.KubeVirt, binaries.VirtAPI}
}

// deployKubeVirt starts KubeVirt once its CRDs are served.
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
		m.handler, err = simulator.StartVirtHandler(ctx, m.client, m.simulatorOptions(), m.options.InstantImporter)
	}
	m.mu.Unlock()
	if err != nil {
		return err
	}
	if err := m.StartKubeVirt(); err != nil {
		return err
	}
	if m.options.InstantImporter { // no admission webhooks, as for DataVolumes
		return m.waitForKubeVirt(ctx)
	}
	if err := m.StartKubeVirtWebhooks(); err != nil {
		return err
	}
	return m.waitForKubeVirt(ctx)
}

// prepareKubeVirt creates what virt-operator creates.
func (m *Member) prepareKubeVirt(ctx context.Context) error {
	version, err := binaries.Version(binaries.KubeVirtComponent)
	if err != nil {
		return err
	}
	installed := &kubevirtv1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: kubeVirtNamespace, Name: kubeVirtName}}
	for _, object := range []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: kubeVirtNamespace}}, installed} {
		if err := m.client.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating %T %s: %w", object, object.GetName(), err)
		}
	}
	old := &kubevirtv1.KubeVirt{ObjectMeta: installed.ObjectMeta}
	installed = old.DeepCopy()
	installed.Status.Phase, installed.Status.DefaultArchitecture = kubevirtv1.KubeVirtPhaseDeployed, "amd64"
	installed.Status.ObservedKubeVirtVersion = version
	for _, kind := range []kubevirtv1.KubeVirtConditionType{kubevirtv1.KubeVirtConditionAvailable, kubevirtv1.KubeVirtConditionCreated} {
		installed.Status.Conditions = append(installed.Status.Conditions, kubevirtv1.KubeVirtCondition{Type: kind, Status: corev1.ConditionTrue})
	}
	if err := m.client.Status().Patch(ctx, installed, client.MergeFrom(old)); err != nil {
		return fmt.Errorf("saying that KubeVirt is deployed: %w", err)
	}
	return nil
}

// StartKubeVirt starts virt-controller unless it runs.
func (m *Member) StartKubeVirt() error {
	// virt-controller watches this directory: nothing else may be written to it.
	dir := filepath.Join(m.ControlPlane.Dir(), "virt-controller")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the directory of virt-controller's certificate: %w", err)
	}
	return m.startKubeVirt(&m.kubevirt, binaries.KubeVirt, "kubevirt-controller", 128,
		"--listen=127.0.0.1", "--port=0",
		"--prom-cert-file="+filepath.Join(dir, "tls.crt"), "--prom-key-file="+filepath.Join(dir, "tls.key"),
		// It is the only replica. Without a long lease it would exit while the API server is
		// down, and nothing restarts it.
		"--leader-elect-lease-duration=48h", "--leader-elect-renew-deadline=24h",
	)
}

// StartKubeVirtWebhooks starts KubeVirt's admission webhooks unless they run.
func (m *Member) StartKubeVirtWebhooks() error {
	return m.startKubeVirt(&m.kubevirtWebhooks, binaries.VirtAPI, "kubevirt-apiserver", 160)
}

func (m *Member) startKubeVirt(p **process.Process, name binaries.Name, account string, heapMiB int64, args ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if *p != nil && !(*p).HasEnded() {
		return nil
	}
	paths, err := binaries.Ensure(context.Background(), name)
	if err != nil {
		return err
	}
	kubeconfig, err := m.writeAccountKubeconfig(account)
	if err != nil {
		return err
	}
	*p, err = process.Start(process.Options{
		Path: paths[name], LogFile: m.LogFile(name), HeapMiB: heapMiB,
		Args: append([]string{"--kubeconfig=" + kubeconfig}, args...),
	})
	return err
}

// writeAccountKubeconfig writes a kubeconfig with all rights and the name of a KubeVirt component:
// KubeVirt's webhooks allow their own accounts more than others.
func (m *Member) writeAccountKubeconfig(account string) (string, error) {
	config, err := clientcmd.LoadFromFile(m.ControlPlane.Kubeconfig())
	if err != nil {
		return "", fmt.Errorf("making a kubeconfig for %s: %w", account, err)
	}
	for _, user := range config.AuthInfos {
		user.Impersonate, user.ImpersonateGroups = simulator.KubeVirtIdentity(account)
	}
	path := filepath.Join(m.ControlPlane.Dir(), account+".kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("making a kubeconfig for %s: %w", account, err)
	}
	return path, nil
}

func (m *Member) waitForKubeVirt(ctx context.Context) error {
	missing := ""
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, controlplane.Patience, true, func(ctx context.Context) (bool, error) {
		for _, p := range []*process.Process{m.kubevirt, m.kubevirtWebhooks} {
			if p != nil && p.HasEnded() {
				return false, fmt.Errorf("a part of KubeVirt ended (%w), its log is %s", p.Wait(), p.LogFile())
			}
		}
		missing = "a leading virt-controller"
		var lease coordinationv1.Lease
		err := m.client.Get(ctx, client.ObjectKey{Namespace: kubeVirtNamespace, Name: kubeVirtLease}, &lease)
		if err != nil || ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
			return false, client.IgnoreNotFound(err)
		}
		missing = "admission webhooks"
		return m.kubevirtWebhooks == nil || m.virtualMachinesAreValidated(ctx), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for KubeVirt, still missing %s (log %s): %w", missing, m.LogFile(binaries.KubeVirt), err)
	}
	return nil
}

// virtualMachinesAreValidated reports whether KubeVirt's webhooks reject a VM without a run strategy.
func (m *Member) virtualMachinesAreValidated(ctx context.Context) bool {
	probe := &kubevirtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: kubeVirtNamespace, Name: "probe"},
		Spec:       kubevirtv1.VirtualMachineSpec{Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{}},
	}
	err := m.client.Create(ctx, probe, client.DryRunAll)
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

func (m *Member) stopKubeVirt() error {
	var errs []error
	for _, p := range []*process.Process{m.kubevirt, m.kubevirtWebhooks} {
		if p != nil {
			errs = append(errs, p.Stop(stopTimeout))
		}
	}
	if m.handler != nil {
		errs = append(errs, m.handler.Stop())
	}
	return errors.Join(errs...)
}
