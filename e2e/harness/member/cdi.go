//go:build linux

package member

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
)

const (
	cdiNamespace = "cdi"
	cdiName      = "cdi"
	// cdiAccount is the ServiceAccount of CDI's controllers, which admission policies match.
	cdiAccount = "cdi-sa"
)

// prepareCDI creates what CDI's operator creates, and sets the access modes of the simulated classes
// in their StorageProfiles, which CDI does not know.
func (m *Member) prepareCDI(ctx context.Context) error {
	version, err := binaries.Version(binaries.CDIComponent)
	if err != nil {
		return err
	}
	installed := &cdiv1.CDI{ObjectMeta: metav1.ObjectMeta{Name: cdiName, Annotations: map[string]string{"cdi.kubevirt.io/configAuthority": ""}}}
	installed.Status.Phase = "Deployed" // the CDI kind has no status subresource
	installed.Status.OperatorVersion, installed.Status.TargetVersion, installed.Status.ObservedVersion = version, version, version
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: cdiNamespace}}, installed,
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: cdiAccount},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: cdiNamespace, Name: cdiAccount}},
		},
	}
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

// InstallCDI installs CDI in a member that was started without it, and waits until it is ready.
func (m *Member) InstallCDI(ctx context.Context) error {
	if err := m.installCRDs(ctx, Options{WithoutSnapshots: true}, binaries.CDI); err != nil {
		return err
	}
	return m.deployCDI(ctx)
}

// deployCDI starts CDI once its CRDs are served.
func (m *Member) deployCDI(ctx context.Context) error {
	if err := m.prepareCDI(ctx); err != nil {
		return err
	}
	if err := m.StartCDI(); err != nil {
		return err
	}
	if err := m.StartCDIWebhooks(); err != nil {
		return err
	}
	return m.waitForCDI(ctx)
}

// InstallSnapshotCRDs installs the snapshot CRDs in a member that was started without them. No
// controller serves them.
func (m *Member) InstallSnapshotCRDs(ctx context.Context) error {
	return m.installCRDs(ctx, Options{WithoutCDI: true})
}

func (m *Member) installCRDs(ctx context.Context, o Options, needed ...binaries.Name) error {
	paths, err := binaries.Ensure(ctx, needed...)
	if err != nil {
		return err
	}
	crds, err := loadCRDs(ctx, paths, o)
	if err != nil {
		return err
	}
	return controlplane.InstallCRDs(ctx, m.ControlPlane.Config(), crds)
}

// StartCDI starts CDI's controller unless it runs.
func (m *Member) StartCDI() error {
	as := m.ControlPlane.Config()
	as.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + cdiNamespace + ":" + cdiAccount, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + cdiNamespace},
	}
	kubeconfig := filepath.Join(m.ControlPlane.Dir(), "cdi.kubeconfig")
	if err := controlplane.WriteKubeconfig(as, kubeconfig); err != nil {
		return err
	}
	return m.startCDI(&m.cdiController, binaries.CDI, 128, "-kubeconfig="+kubeconfig)
}

// StopCDI stops CDI's controller; importer pods keep running.
func (m *Member) StopCDI() error { return m.stopProcess(&m.cdiController) }

// cdiWebhookLog names the log of the webhooks, which run in CDI's program.
const cdiWebhookLog binaries.Name = "cdi-apiserver"

// StartCDIWebhooks starts CDI's admission webhooks unless they run.
func (m *Member) StartCDIWebhooks() error {
	return m.startCDI(&m.cdiWebhooks, cdiWebhookLog, 48, "-kubeconfig="+m.ControlPlane.Kubeconfig(), "-webhooks")
}

func (m *Member) startCDI(p **process.Process, name binaries.Name, heapMiB int64, args ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if *p != nil && !(*p).HasEnded() {
		return nil
	}
	paths, err := binaries.Ensure(context.Background(), binaries.CDI)
	if err != nil {
		return err
	}
	*p, err = process.Start(process.Options{Path: paths[binaries.CDI], LogFile: m.LogFile(name), HeapMiB: heapMiB, Args: args})
	return err
}

func (m *Member) stopProcess(p **process.Process) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if *p == nil {
		return nil
	}
	return (*p).Stop(stopTimeout)
}

// waitForCDI waits until CDI can serve DataVolumes of every class: earlier ones would get a wrong
// reason or none.
func (m *Member) waitForCDI(ctx context.Context) error {
	missing := "its configuration"
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, controlplane.Patience, true, func(ctx context.Context) (bool, error) {
		for _, p := range []*process.Process{m.cdiController, m.cdiWebhooks} {
			if p.HasEnded() {
				return false, fmt.Errorf("a part of CDI ended (%w), its log is %s", p.Wait(), p.LogFile())
			}
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
		missing = "its admission webhooks"
		return m.clonesAreValidated(ctx)
	})
	if err != nil {
		return fmt.Errorf("waiting for CDI to get ready, still missing %s (log %s): %w", missing, m.LogFile(binaries.CDI), err)
	}
	return nil
}

// clonesAreValidated reports whether CDI's webhooks reject a clone without a source.
func (m *Member) clonesAreValidated(ctx context.Context) (bool, error) {
	probe := &cdiv1.DataVolume{
		ObjectMeta: metav1.ObjectMeta{Namespace: cdiNamespace, Name: "probe"},
		Spec: cdiv1.DataVolumeSpec{
			Source:  &cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: "namespace-that-is-not-there", Name: "probe"}},
			Storage: &cdiv1.StorageSpec{},
		},
	}
	err := m.client.Create(ctx, probe, client.DryRunAll)
	if apierrors.IsBadRequest(err) {
		return true, nil
	}
	// The webhook is not registered, not reachable, or too slow.
	if err == nil || apierrors.IsInternalError(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || utilnet.IsTimeout(err) {
		return false, nil
	}
	return false, err
}
