//go:build linux

// Package acquire has machines and images come and go in every order, with
// agents killed before and after their writes, frozen past their lease, and kept
// from news. The judge is the observer.
package acquire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

var testScene *testenv.Env

// CDI, storage and the collector of garbage are played, and of KubeVirt there is
// the kind: what counts here is what the agent writes, and when.
func TestMain(m *testing.M) {
	testenv.RunTests(m, &testScene, member.Options{
		Name: "acquire", InstantImporter: true, InstantSnapshots: true, InstantImportDuration: 100 * time.Millisecond, Prepare: installKubeVirtCRDs,
		// Nobody would remove its finalizers.
		APIServerArgs: []string{"--disable-admission-plugins=StorageObjectInUseProtection"},
		LogDir:        os.Getenv("OT_FLEET_LOG_DIR"),
	}, false)
}

func installKubeVirtCRDs(ctx context.Context, cfg *rest.Config) error {
	paths, err := binaries.Ensure(ctx, binaries.KubeVirt)
	if err != nil {
		return err
	}
	text, err := exec.CommandContext(ctx, paths[binaries.KubeVirt], "-print-crds").Output()
	if err != nil {
		return fmt.Errorf("printing KubeVirt's kinds: %w", err)
	}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		err := decoder.Decode(crd)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading KubeVirt's kinds: %w", err)
		}
		if crd.Spec.Names.Kind == kubevirt.VirtualMachineGVK.Kind {
			crds = append(crds, crd)
		}
	}
	_, err = envtest.InstallCRDs(cfg, envtest.CRDInstallOptions{CRDs: crds, MaxTime: testenv.Patience, PollInterval: 50 * time.Millisecond})
	return err
}

// isLongRun tells whether there is time for everything.
func isLongRun() bool { return os.Getenv("OT_FLEET_LONG") != "" }

// beginTest makes a namespace for a test and has it observed, and garbage collected.
func beginTest(t *testing.T) (string, *observer.Observer) {
	t.Helper()
	testScene.StorePolicy(t, map[string]string{"concurrency": "8", "retryLimit": "2", "retryBackoffDuration": "1s"})
	testScene.InstantImporter().AllowFinishes(100)
	ns := testScene.CreateNamespace(t)
	o := testScene.StartObserver(t)
	collectGarbageUntilCleanup(t, ns)
	return ns, o
}

// requirePromisesKept is the judgement on S2, and on what imports promise.
func requirePromisesKept(t *testing.T, o *observer.Observer) {
	t.Helper()
	h := testenv.History(t, o)
	assert.Empty(t, h.AcquireViolations(), "S2")
	assert.Empty(t, h.BudgetViolations(), "S1")
	assert.Empty(t, h.ReusedNames(), "S4")
	_, err := testScene.InstantImporter().CountFinished()
	require.NoError(t, err, "the simulated CDI")
}

// requireNothingLeft deletes all machines and images of a namespace, and wants nothing to
// stay of them.
func requireNothingLeft(t *testing.T, ns string, o *observer.Observer, meanwhile func()) {
	t.Helper()
	var (
		machines v1alpha1.VirtualMachineList
		images   v1alpha1.VMDiskImageList
		left     []string
	)
	require.NoError(t, testScene.Client().List(t.Context(), &images, client.InNamespace(ns)))
	require.NoError(t, testScene.Client().List(t.Context(), &machines, client.InNamespace(ns)))
	for i := range images.Items {
		deleteObject(t, &images.Items[i])
	}
	for i := range machines.Items {
		deleteObject(t, &machines.Items[i])
	}
	require.True(t, testenv.Await(t, func() bool {
		if meanwhile != nil {
			meanwhile()
		}
		left = listLeftovers(t, ns)
		return len(left) == 0
	}), "left behind: %v", &left)
	assert.Empty(t, testenv.History(t, o).StrayDisks())
}

// listLeftovers is what there is of machines and images in a namespace.
func listLeftovers(t *testing.T, ns string) []string {
	t.Helper()
	var left []string
	for _, list := range []client.ObjectList{
		&v1alpha1.VirtualMachineList{}, &v1alpha1.VMDiskImageList{}, &cdiv1.DataVolumeList{}, &corev1.PersistentVolumeClaimList{}, &snapshotv1.VolumeSnapshotList{},
	} {
		require.NoError(t, testScene.Client().List(t.Context(), list, client.InNamespace(ns)))
		left = append(left, listNames(t, list)...)
	}
	return left
}

func deleteObject(t *testing.T, o client.Object) {
	t.Helper()
	require.NoError(t, client.IgnoreNotFound(testScene.Client().Delete(t.Context(), o)))
}

// withImageTemplate has an image made from a template.
func withImageTemplate(vm *v1alpha1.VirtualMachine, img *v1alpha1.VMDiskImage) *v1alpha1.VirtualMachine {
	vm.Spec.VMDiskImageTemplate = &img.Spec
	return vm
}

// getObject reads an object again; false where it does not exist.
func getObject[T client.Object](t *testing.T, ns, name string, o T) bool {
	t.Helper()
	err := testScene.Client().Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, o)
	require.NoError(t, client.IgnoreNotFound(err))
	return !apierrors.IsNotFound(err)
}

// isVMComplete tells whether KubeVirt has what a machine is to run from: its root disk,
// complete, and its own VirtualMachine. Which one follows is for KubeVirt.
func isVMComplete(t *testing.T, vm *v1alpha1.VirtualMachine) bool {
	t.Helper()
	now := &v1alpha1.VirtualMachine{}
	if !getObject(t, vm.Namespace, vm.Name, now) || now.UID != vm.UID || now.Status.Pinned == nil || now.Status.Pinned.AcquiredAt == nil {
		return false
	}
	disk, theirs := findRootDisk(t, vm), &unstructuredVM{}
	theirs.SetGroupVersionKind(kubevirt.VirtualMachineGVK)
	return disk != nil && disk.Status.Phase == cdiv1.Succeeded && disk.Annotations[v1alpha1.AnnotationClonedFrom] == kubevirt.ClonedFromValue(*now.Status.Pinned) &&
		now.Status.RootDisk != nil && now.Status.RootDisk.Ready &&
		getObject(t, vm.Namespace, vm.Name, theirs) && theirs.GetLabels()[v1alpha1.LabelMachineUID] == string(vm.UID)
}

// findRootDisk is the root disk of a machine; nil where it has none.
func findRootDisk(t *testing.T, vm *v1alpha1.VirtualMachine) *cdiv1.DataVolume {
	t.Helper()
	disk := &cdiv1.DataVolume{}
	if !getObject(t, vm.Namespace, kubevirt.RootDiskName(vm), disk) || disk.Labels[v1alpha1.LabelMachineUID] != string(vm.UID) {
		return nil
	}
	return disk
}

// serves tells what an image serves, and from which attempt on it is wanted.
func readServing(t *testing.T, img *v1alpha1.VMDiskImage) *v1alpha1.Serving {
	t.Helper()
	now := &v1alpha1.VMDiskImage{}
	if !getObject(t, img.Namespace, img.Name, now) || now.UID != img.UID {
		return nil
	}
	return now.Status.Serving
}

// deleteByHand deletes an object as a person does.
func deleteByHand(t *testing.T, o *observer.Observer, obj client.Object) {
	t.Helper()
	o.MarkDeletedByHand(obj.GetUID())
	deleteObject(t, obj)
}
