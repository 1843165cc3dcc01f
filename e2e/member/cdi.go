//go:build linux

package member

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/binaries"
	"github.com/pelotech/ot-fleet/e2e/process"
	"github.com/pelotech/ot-fleet/e2e/simulator"
)

const (
	cdiNamespace = "cdi"
	cdiName      = "cdi"
	cdiTimeout   = 60 * time.Second
)

// prepareCDI makes what CDI's operator would have made, and says on each
// StorageProfile which access modes its class has: no CDI knows our drivers.
func (m *Member) prepareCDI(ctx context.Context) error {
	installed := &cdiv1.CDI{ObjectMeta: metav1.ObjectMeta{Name: cdiName, Annotations: map[string]string{"cdi.kubevirt.io/configAuthority": ""}}}
	installed.Status.Phase = "Deployed" // the CDI kind has no status subresource
	objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: cdiNamespace}}, installed}
	for _, class := range []string{simulator.ClassCSI, simulator.ClassLocal, simulator.ClassWaitForFirstConsumer} {
		objects = append(objects, &cdiv1.StorageProfile{
			ObjectMeta: metav1.ObjectMeta{Name: class},
			Spec: cdiv1.StorageProfileSpec{ClaimPropertySets: []cdiv1.ClaimPropertySet{{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				VolumeMode:  ptr.To(corev1.PersistentVolumeFilesystem),
			}}},
		})
	}
	for _, object := range objects {
		if err := m.client.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating %T %s for CDI: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// InstallCDI installs CDI in a member that was started without it, and returns
// when it is ready.
func (m *Member) InstallCDI(ctx context.Context) error {
	if err := m.installKinds(ctx, Options{WithoutSnapshots: true}, binaries.CDI); err != nil {
		return err
	}
	if err := m.prepareCDI(ctx); err != nil {
		return err
	}
	if err := m.StartCDI(); err != nil {
		return err
	}
	return m.waitForCDI(ctx)
}

// InstallSnapshotKinds installs the CRDs of snapshots in a member that was
// started without them. Nobody acts on them.
func (m *Member) InstallSnapshotKinds(ctx context.Context) error {
	return m.installKinds(ctx, Options{WithoutCDI: true})
}

func (m *Member) installKinds(ctx context.Context, o Options, needed ...binaries.Name) error {
	paths, err := binaries.Ensure(ctx, needed...)
	if err != nil {
		return err
	}
	crds, err := definitions(ctx, paths, o)
	if err != nil {
		return err
	}
	return install(m.ControlPlane.Config(), crds)
}

// StartCDI starts CDI's controller where it does not run.
func (m *Member) StartCDI() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cdi != nil {
		select {
		case <-m.cdi.Done():
		default:
			return nil
		}
	}
	paths, err := binaries.Ensure(context.Background(), binaries.CDI)
	if err != nil {
		return err
	}
	m.cdi, err = process.Start(process.Options{
		Path: paths[binaries.CDI], LogFile: m.LogFile(binaries.CDI), Env: []string{"GOMEMLIMIT=128MiB"},
		Args: []string{"-kubeconfig=" + m.ControlPlane.Kubeconfig()},
	})
	return err
}

// StopCDI takes CDI's controller away; importer pods run on.
func (m *Member) StopCDI() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cdi == nil {
		return nil
	}
	return m.cdi.Stop(stopTimeout)
}

// waitForCDI returns when CDI can serve a DataVolume on every class: before,
// one would get a wrong reason or none.
func (m *Member) waitForCDI(ctx context.Context) error {
	missing := "its configuration"
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, cdiTimeout, true, func(ctx context.Context) (bool, error) {
		select {
		case <-m.cdi.Done():
			return false, fmt.Errorf("cdi-controller ended (%w), its log is %s", m.cdi.Wait(), m.cdi.LogFile())
		default:
		}
		var config cdiv1.CDIConfig
		if err := m.client.Get(ctx, client.ObjectKey{Name: "config"}, &config); err != nil || config.Status.FilesystemOverhead == nil {
			return false, client.IgnoreNotFound(err)
		}
		for _, class := range []string{simulator.ClassCSI, simulator.ClassLocal, simulator.ClassWaitForFirstConsumer, simulator.ClassUnknown} {
			missing = "StorageProfile " + class
			var profile cdiv1.StorageProfile
			if err := m.client.Get(ctx, client.ObjectKey{Name: class}, &profile); err != nil || profile.Status.StorageClass == nil {
				return false, client.IgnoreNotFound(err)
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for CDI to get ready, still missing %s (log %s): %w", missing, m.LogFile(binaries.CDI), err)
	}
	return nil
}
