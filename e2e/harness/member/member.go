//go:build linux

// Package member starts member clusters: a real control plane with scheduler, CDI, the snapshot
// controller, and a simulated node and storage (see package simulator). A member can import
// when Start returns.
package member

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	kubevirtv1 "kubevirt.io/api/core/v1"
	instancetypev1beta1 "kubevirt.io/api/instancetype/v1beta1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
)

// Options choose what a member has.
type Options struct {
	Name string
	// Scheme is that of Client. The kinds of Kubernetes, CDI, snapshots and KubeVirt are added.
	Scheme *runtime.Scheme
	// WithoutCDI omits CDI's CRDs and controller.
	WithoutCDI bool
	// KubeVirt adds KubeVirt's CRDs, virt-controller, webhooks (without InstantImporter), and
	// the simulated virt-handler. InstallKubeVirt adds them later.
	KubeVirt bool
	// WithoutSnapshots omits the snapshot CRDs, classes and controller.
	WithoutSnapshots bool
	// InstantImporter runs simulator.InstantImporter instead of CDI's controller, node and
	// storage; CDI's CRDs are installed. It serves snapshots with InstantSnapshots only. Of
	// the controller manager only Controllers run.
	InstantImporter  bool
	InstantSnapshots bool
	// InstantImportDuration is how long an import of the InstantImporter takes.
	InstantImportDuration time.Duration
	// Controllers of the controller manager that run with InstantImporter; none by default.
	Controllers []string
	// ImportProgress has imports of a set duration say how far they are.
	ImportProgress bool
	// LogDir keeps the logs after Stop; by default they are deleted with the member.
	LogDir string
	// APIServerArgs are additional arguments of the API server.
	APIServerArgs []string
	// Prepare runs before the controllers start, for example to install further CRDs.
	Prepare func(context.Context, *rest.Config) error
}

// Member is one running member cluster.
type Member struct {
	ControlPlane *controlplane.ControlPlane

	options         Options
	client          client.WithWatch
	kubelet         *simulator.Kubelet
	storage         *simulator.Storage
	progress        *simulator.ImportProgress
	instantImporter *simulator.InstantImporter

	mu                       sync.Mutex
	cdiController, snapshots *process.Process
	cdiWebhooks              *process.Process
	kubevirt                 *process.Process
	kubevirtWebhooks         *process.Process
	handler                  *simulator.VirtHandler
	stopped                  bool
	cancelInterrupt          func()
}

const stopTimeout = 2 * time.Minute

// Start runs a member and waits until it can import.
func Start(ctx context.Context, o Options) (_ *Member, err error) {
	if o.Name == "" {
		o.Name = "member"
	}
	if o.Scheme == nil {
		o.Scheme = runtime.NewScheme()
	}
	if err := AddToScheme(o.Scheme); err != nil {
		return nil, err
	}
	var needed []binaries.Name
	if o.InstantImporter {
		o.WithoutSnapshots = !o.InstantSnapshots
	} else {
		needed = append(needed, binaries.KWOK)
	}
	if !o.WithoutCDI {
		needed = append(needed, binaries.CDI)
	}
	if !o.WithoutSnapshots && !o.InstantImporter {
		needed = append(needed, binaries.SnapshotController)
	}
	if o.KubeVirt {
		needed = append(needed, kubeVirtPrograms(o)...)
	}
	paths, err := binaries.Ensure(ctx, needed...)
	if err != nil {
		return nil, err
	}
	plane, err := controlplane.Start(ctx, controlplane.Options{
		Name: o.Name, ControllerManager: !o.InstantImporter || len(o.Controllers) > 0, Controllers: o.Controllers, Scheduler: !o.InstantImporter, LogDir: o.LogDir,
		APIServerArgs: o.APIServerArgs,
		BeforeControllers: func(ctx context.Context, config *rest.Config) error {
			crds, err := loadCRDs(ctx, paths, o)
			if err != nil {
				return err
			}
			if err := controlplane.InstallCRDs(ctx, config, crds); err != nil || o.Prepare == nil {
				return err
			}
			return o.Prepare(ctx, config)
		},
	})
	if err != nil {
		return nil, err
	}
	if o.LogDir == "" {
		o.LogDir = plane.Dir()
	}
	m := &Member{ControlPlane: plane, options: o}
	m.cancelInterrupt = process.AtInterrupt(func() { _ = m.Stop() })
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("starting member %s: %w", o.Name, err), m.Stop())
		}
	}()
	if m.client, err = client.NewWithWatch(plane.Config(), client.Options{Scheme: o.Scheme}); err != nil {
		return nil, fmt.Errorf("making its client: %w", err)
	}
	if err := m.startPrograms(ctx, paths); err != nil || !o.KubeVirt {
		return m, err
	}
	return m, m.deployKubeVirt(ctx)
}

func (m *Member) simulatorOptions() simulator.Options {
	return simulator.Options{
		Name: m.options.Name, Config: m.ControlPlane.Config(), Kubeconfig: m.ControlPlane.Kubeconfig(), Dir: m.ControlPlane.Dir(),
		LogDir: m.options.LogDir, Scheme: m.options.Scheme, Snapshots: !m.options.WithoutSnapshots,
	}
}

func (m *Member) startPrograms(ctx context.Context, paths binaries.Paths) (err error) {
	simulated := m.simulatorOptions()
	if m.options.InstantImporter {
		m.instantImporter, err = simulator.StartInstantImporter(ctx, simulated, m.options.InstantImportDuration)
		return err
	}
	if m.kubelet, err = simulator.StartKubelet(ctx, m.client, simulated); err != nil {
		return err
	}
	if m.options.ImportProgress {
		if m.progress, err = simulator.StartImportProgress(m.client, m.kubelet); err != nil {
			return err
		}
	}
	if m.storage, err = simulator.StartStorage(ctx, m.client, simulated); err != nil {
		return err
	}
	if !m.options.WithoutSnapshots {
		m.snapshots, err = process.Start(process.Options{
			Path: paths[binaries.SnapshotController], LogFile: m.LogFile(binaries.SnapshotController), HeapMiB: 48,
			Args: []string{"--kubeconfig=" + m.ControlPlane.Kubeconfig(), "--kube-api-qps=200", "--kube-api-burst=400"},
		})
		if err != nil {
			return err
		}
	}
	if m.options.WithoutCDI {
		return nil
	}
	return m.deployCDI(ctx)
}

// StartAll starts members concurrently. When one fails to start, the others are stopped.
func StartAll(ctx context.Context, options ...Options) ([]*Member, error) {
	return process.StartAll(ctx, Start, options)
}

// AddToScheme adds the kinds of Kubernetes, CDI, snapshots and KubeVirt.
func AddToScheme(scheme *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, cdiv1.AddToScheme, snapshotv1.AddToScheme, kubevirtv1.AddToScheme, instancetypev1beta1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("adding a member's kinds to the scheme: %w", err)
		}
	}
	return nil
}

// Name returns the member's name.
func (m *Member) Name() string { return m.options.Name }

// ListEnded returns the logs of the programs that have exited, those of the control plane included.
func (m *Member) ListEnded() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(m.ControlPlane.ListEnded(), process.ListEnded(m.cdiController, m.snapshots, m.cdiWebhooks, m.kubevirt, m.kubevirtWebhooks)...)
}

// Client returns a client with all rights and no cache.
func (m *Member) Client() client.WithWatch { return m.client }

// InstantImporter returns the simulated CDI; nil without Options.InstantImporter.
func (m *Member) InstantImporter() *simulator.InstantImporter { return m.instantImporter }

// LogFile returns the log file of a program.
func (m *Member) LogFile(name binaries.Name) string {
	return filepath.Join(m.options.LogDir, fmt.Sprintf("%s-%s.log", m.options.Name, name))
}

// Stop ends all programs, those that use the API server first. It is idempotent.
func (m *Member) Stop() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return nil
	}
	m.stopped = true
	m.cancelInterrupt()
	errs := []error{m.stopKubeVirt()}
	for _, p := range []*process.Process{m.cdiController, m.cdiWebhooks, m.snapshots} {
		if p != nil {
			errs = append(errs, p.Stop(stopTimeout))
		}
	}
	if m.progress != nil {
		errs = append(errs, m.progress.Stop())
	}
	if m.kubelet != nil {
		errs = append(errs, m.kubelet.Stop())
	}
	if m.storage != nil {
		errs = append(errs, m.storage.Stop())
	}
	if m.instantImporter != nil {
		errs = append(errs, m.instantImporter.Stop())
	}
	errs = append(errs, m.ControlPlane.Stop())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stopping member %s: %w", m.options.Name, err)
	}
	return nil
}
