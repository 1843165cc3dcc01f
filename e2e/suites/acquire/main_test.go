//go:build linux

// Package acquire shows that an acquired image outlives every race with its deletion (S2 of
// docs/architecture.md), which takes real resourceVersions and processes: VirtualMachines
// and images are created, changed and deleted while agents are killed at their writes,
// paused past their Lease with a write in flight, or left with a stale cache. The judge is
// the observer.
package acquire

import (
	"os"
	"slices"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

var env *testenv.Env

// CDI and storage are simulated, and of KubeVirt there is only the CRD: the subject is the agent's
// writes and their order. Garbage collection is the cluster's own.
func TestMain(m *testing.M) {
	testenv.RunTests(m, &env, member.Options{
		Name: "acquire", InstantImporter: true, InstantSnapshots: true, InstantImportDuration: 100 * time.Millisecond, Prepare: member.InstallKubeVirtVMCRD,
		Controllers: []string{"garbage-collector-controller"},
		// No controller removes that plugin's finalizers.
		APIServerArgs: []string{"--disable-admission-plugins=StorageObjectInUseProtection"},
		LogDir:        os.Getenv("OT_FLEET_LOG_DIR"),
	}, false)
}

// createMachine creates a VM of an image.
func createMachine(t *testing.T, ns string, img *v1alpha1.VMDiskImage) *v1alpha1.VirtualMachine {
	t.Helper()
	vm := testenv.NewMachine(ns, "vm", img)
	env.Create(t, vm)
	return vm
}

// beginTest creates a namespace with an observer.
func beginTest(t *testing.T) (string, *observer.Observer) {
	t.Helper()
	env.StorePolicy(t, map[string]string{"concurrency": "8", "retryLimit": "2", "retryBackoffDuration": "1s"})
	env.InstantImporter().AllowFinishes(100)
	ns := env.CreateNamespace(t)
	o := env.StartObserver(t)
	return ns, o
}

// requirePromisesKept checks S1, S2 and S4 over all that an observer has seen.
func requirePromisesKept(t *testing.T, o *observer.Observer) {
	t.Helper()
	h := testenv.History(t, o)
	assert.Empty(t, h.AcquireViolations(), "S2")
	assert.Empty(t, h.BudgetViolations(), "S1")
	assert.Empty(t, h.ReusedNames(), "S4")
	_, err := env.InstantImporter().CountFinished()
	require.NoError(t, err, "the simulated CDI")
}

// requireNothingLeft deletes all VMs and images of a namespace and waits until nothing of
// them is left. It calls meanwhile, if set, while it waits.
func requireNothingLeft(t *testing.T, ns string, o *observer.Observer, meanwhile func()) {
	t.Helper()
	var (
		vms    v1alpha1.VirtualMachineList
		images v1alpha1.VMDiskImageList
		left   []string
	)
	require.NoError(t, env.Client().List(t.Context(), &images, client.InNamespace(ns)))
	require.NoError(t, env.Client().List(t.Context(), &vms, client.InNamespace(ns)))
	for i := range images.Items {
		deleteObject(t, &images.Items[i])
	}
	for i := range vms.Items {
		deleteObject(t, &vms.Items[i])
	}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		if meanwhile != nil {
			meanwhile()
		}
		left = listLeftovers(t, ns)
		return len(left) == 0
	}), "left behind: %v", &left)
	assert.Empty(t, testenv.History(t, o).StrayDisks())
}

// listLeftovers lists the names of what is left of VMs and images in a namespace.
func listLeftovers(t *testing.T, ns string) []string {
	t.Helper()
	var left []string
	for _, list := range []client.ObjectList{
		&v1alpha1.VirtualMachineList{}, &v1alpha1.VMDiskImageList{}, &cdiv1.DataVolumeList{}, &corev1.PersistentVolumeClaimList{}, &snapshotv1.VolumeSnapshotList{},
	} {
		for _, o := range listObjects(t, ns, list) {
			left = append(left, o.GetName())
		}
	}
	return left
}

func listObjects(t *testing.T, ns string, list client.ObjectList) (objects []client.Object) {
	t.Helper()
	require.NoError(t, env.Client().List(t.Context(), list, client.InNamespace(ns)))
	require.NoError(t, meta.EachListItem(list, func(o runtime.Object) error {
		objects = append(objects, o.(client.Object))
		return nil
	}))
	return objects
}

func deleteObject(t *testing.T, o client.Object) {
	t.Helper()
	require.NoError(t, client.IgnoreNotFound(env.Client().Delete(t.Context(), o)))
}

// withImageTemplate gives a VM a template to create its image from.
func withImageTemplate(vm *v1alpha1.VirtualMachine, img *v1alpha1.VMDiskImage) *v1alpha1.VirtualMachine {
	vm.Spec.VMDiskImageTemplate = &img.Spec
	return vm
}

// getObject reads an object and reports whether it exists.
func getObject[T client.Object](t *testing.T, ns, name string, o T) bool {
	t.Helper()
	err := env.Client().Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, o)
	require.NoError(t, client.IgnoreNotFound(err))
	return !apierrors.IsNotFound(err)
}

// isVMComplete reports whether KubeVirt has what a VM needs to run: a complete root disk,
// cloned from the pinned image, and KubeVirt's VirtualMachine.
func isVMComplete(t *testing.T, vm *v1alpha1.VirtualMachine) bool {
	t.Helper()
	current := &v1alpha1.VirtualMachine{}
	if !getObject(t, vm.Namespace, vm.Name, current) || current.UID != vm.UID || current.Status.Pinned == nil || current.Status.Pinned.AcquiredAt == nil {
		return false
	}
	disk, kubeVirtVM := findRootDisk(t, vm), &unstructured.Unstructured{}
	kubeVirtVM.SetGroupVersionKind(kubevirt.VirtualMachineGVK)
	return disk != nil && disk.Status.Phase == cdiv1.Succeeded && disk.Annotations[v1alpha1.AnnotationClonedFrom] == kubevirt.ClonedFromValue(*current.Status.Pinned) &&
		current.Status.RootDisk != nil && current.Status.RootDisk.Ready && areDisksComplete(current) &&
		getObject(t, vm.Namespace, vm.Name, kubeVirtVM) && kubeVirtVM.GetLabels()[v1alpha1.LabelMachineUID] == string(vm.UID)
}

func areDisksComplete(vm *v1alpha1.VirtualMachine) bool {
	return len(vm.Spec.Disks) == len(vm.Status.Disks) && !slices.ContainsFunc(vm.Status.Disks, func(disk v1alpha1.DataDisk) bool {
		return disk.Volume == nil || !disk.Volume.Ready
	})
}

// findRootDisk returns the root disk of a VM; nil for none.
func findRootDisk(t *testing.T, vm *v1alpha1.VirtualMachine) *cdiv1.DataVolume {
	t.Helper()
	disk := &cdiv1.DataVolume{}
	if !getObject(t, vm.Namespace, kubevirt.RootDiskName(vm), disk) || disk.Labels[v1alpha1.LabelMachineUID] != string(vm.UID) {
		return nil
	}
	return disk
}

// readServing returns what an image serves; nil for nothing.
func readServing(t *testing.T, img *v1alpha1.VMDiskImage) *v1alpha1.Serving {
	t.Helper()
	current := &v1alpha1.VMDiskImage{}
	if !getObject(t, img.Namespace, img.Name, current) || current.UID != img.UID {
		return nil
	}
	return current.Status.Serving
}

// deleteByHand deletes an object as a person does: the observer accepts its loss.
func deleteByHand(t *testing.T, o *observer.Observer, obj client.Object) {
	t.Helper()
	o.MarkDeletedByHand(obj.GetUID())
	deleteObject(t, obj)
}
