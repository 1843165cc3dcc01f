//go:build linux

package workspaces

import (
	"context"
	"sync"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// Tests that change the policy, or take a part of the member away, run before
// all others: those are parallel.

// newPolicy is a quick one, with some of its keys changed.
func newPolicy(keysAndValues ...string) map[string]string {
	data := map[string]string{"concurrency": "8", "retryLimit": "1", "retryBackoffDuration": "100ms"}
	for i := 0; i < len(keysAndValues); i += 2 {
		data[keysAndValues[i]] = keysAndValues[i+1]
	}
	return data
}

// setPolicyForTest for one test.
func setPolicyForTest(t *testing.T, keysAndValues ...string) {
	t.Helper()
	t.Cleanup(func() {
		cm := env.PolicyConfigMap()
		require.NoError(t, env.Client().Get(context.Background(), client.ObjectKeyFromObject(cm), cm))
		cm.Data = newPolicy()
		require.NoError(t, env.Client().Update(context.Background(), cm))
	})
	env.SetPolicy(t, newPolicy(keysAndValues...))
}

var (
	sharedImageOnce sync.Once
	sharedImageName = client.ObjectKey{Namespace: "base", Name: "image"}
)

// sharedImage is an image that serves, for machines whose image is not what is tested.
func sharedImage(t *testing.T) *v1alpha1.VMDiskImage {
	t.Helper()
	img := env.NewSnapshottedImage(sharedImageName.Namespace, sharedImageName.Name, "/ok/100ms/base")
	sharedImageOnce.Do(func() {
		env.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: img.Namespace}}, img)
	})
	return awaitSucceeded(t, img)
}

func awaitSucceeded(t *testing.T, img *v1alpha1.VMDiskImage) *v1alpha1.VMDiskImage {
	t.Helper()
	return env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
}

// createAndAwaitImage makes an image and waits until it serves.
func createAndAwaitImage(t *testing.T, img *v1alpha1.VMDiskImage) *v1alpha1.VMDiskImage {
	t.Helper()
	env.Create(t, img)
	return awaitSucceeded(t, img)
}

// withImageTemplate is a machine that makes the image which it names where it is missing.
func withImageTemplate(namespace, name string, img *v1alpha1.VMDiskImage) *v1alpha1.VirtualMachine {
	vm := testenv.NewMachine(namespace, name, img)
	vm.Spec.VMDiskImageTemplate = img.Spec.DeepCopy()
	return vm
}

// awaitRunning waits until a machine runs as its spec is now.
func awaitRunning(t *testing.T, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
	t.Helper()
	return env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return testenv.IsMachineReady(vm) && vm.Status.Reason == v1alpha1.ReasonRunning
	})
}

// createAndAwaitRunning makes a machine and waits until it runs.
func createAndAwaitRunning(t *testing.T, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
	t.Helper()
	env.Create(t, vm)
	return awaitRunning(t, vm)
}

func awaitReason(t *testing.T, vm *v1alpha1.VirtualMachine, reason v1alpha1.Reason) *v1alpha1.VirtualMachine {
	t.Helper()
	return env.AwaitMachine(t, vm, testenv.MachineHasReason(reason))
}

// awaitFailure waits until a person is to mend something.
func awaitFailure(t *testing.T, vm *v1alpha1.VirtualMachine, reason v1alpha1.Reason) {
	t.Helper()
	env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Phase == v1alpha1.MachineFailed && vm.Status.Reason == reason
	})
}

// awaitCondition waits for a condition of a machine, and returns its message.
func awaitCondition(t *testing.T, vm *v1alpha1.VirtualMachine, condition string, status metav1.ConditionStatus) string {
	t.Helper()
	got := env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		c := meta.FindStatusCondition(vm.Status.Conditions, condition)
		return c != nil && c.Status == status && c.ObservedGeneration == vm.Generation
	})
	return meta.FindStatusCondition(got.Status.Conditions, condition).Message
}

// awaitObject reads an object until it is as wanted.
func awaitObject[T client.Object](t *testing.T, o T, what string, wanted func(T) bool) T {
	t.Helper()
	require.True(t, testenv.Await(t, func() bool {
		return env.Client().Get(t.Context(), client.ObjectKeyFromObject(o), o) == nil && wanted(o)
	}), "%T %s is not as wanted: %s\n%+v", o, client.ObjectKeyFromObject(o), what, o)
	return o
}

func kubeVirtVMOf(vm *v1alpha1.VirtualMachine) *kubevirtv1.VirtualMachine {
	return &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: vm.Name}}
}

func kubeVirtVMIOf(vm *v1alpha1.VirtualMachine) *kubevirtv1.VirtualMachineInstance {
	return &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: vm.Name}}
}

func rootDiskOf(vm *v1alpha1.VirtualMachine) *cdiv1.DataVolume {
	return &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: kubevirt.RootDiskName(vm)}}
}

func cloudInitSecretOf(vm *v1alpha1.VirtualMachine) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: cloudinit.SecretName(vm)}}
}

func snapshotOf(ns, name string) *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
}

// requireObject an object that is there.
func requireObject[T client.Object](t *testing.T, o T) T {
	t.Helper()
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(o), o))
	return o
}

func deleteObject(t *testing.T, o client.Object, how ...client.DeleteOption) {
	t.Helper()
	require.NoError(t, env.Client().Delete(t.Context(), o, how...))
}

// deleteAndAwaitGone has an object deleted and waits until it is gone, or another of its
// name has come.
func deleteAndAwaitGone(t *testing.T, o client.Object) {
	t.Helper()
	requireObject(t, o)
	uid := o.GetUID()
	deleteObject(t, o, client.Preconditions{UID: &uid})
	require.True(t, testenv.Await(t, func() bool {
		err := env.Client().Get(t.Context(), client.ObjectKeyFromObject(o), o)
		return apierrors.IsNotFound(err) || (err == nil && o.GetUID() != uid)
	}), "%T %s is still there: finalizers %v", o, o.GetName(), o.GetFinalizers())
}

// runVM sets the run strategy of the KubeVirt machine, as virtctl does.
func runVM(t *testing.T, vm *v1alpha1.VirtualMachine, strategy kubevirtv1.VirtualMachineRunStrategy) {
	t.Helper()
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"runStrategy":"`+string(strategy)+`"}}`))
	require.NoError(t, env.Client().Patch(t.Context(), kubeVirtVMOf(vm), patch))
}

// stopVM stops a machine as virtctl does, and waits until it is off.
func stopVM(t *testing.T, vm *v1alpha1.VirtualMachine) {
	t.Helper()
	runVM(t, vm, kubevirtv1.RunStrategyHalted)
	env.AwaitGone(t, kubeVirtVMIOf(vm))
	awaitReason(t, vm, v1alpha1.ReasonStopped)
}

// awaitHolders waits until an image counts its holders as these.
func awaitHolders(t *testing.T, img *v1alpha1.VMDiskImage, by ...*v1alpha1.VirtualMachine) *v1alpha1.VMDiskImage {
	t.Helper()
	var names []string
	for _, vm := range by {
		names = append(names, vm.Namespace+"/"+vm.Name)
	}
	return env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
		refs := img.Status.References
		return int(refs.Count) == len(by) && assert.ObjectsAreEqual(names, refs.Holders) && (len(by) > 0) == (refs.UnreferencedSince == nil)
	})
}

// listLeftovers lists what machines are made of in a namespace, by kind and name.
func listLeftovers(t *testing.T, ns string) []string {
	t.Helper()
	var names []string
	for kind, list := range map[string]client.ObjectList{
		"VirtualMachine": &kubevirtv1.VirtualMachineList{}, "VirtualMachineInstance": &kubevirtv1.VirtualMachineInstanceList{},
		"DataVolume": &cdiv1.DataVolumeList{}, "PersistentVolumeClaim": &corev1.PersistentVolumeClaimList{},
		"Pod": &corev1.PodList{}, "Secret": &corev1.SecretList{},
	} {
		require.NoError(t, env.Client().List(t.Context(), list, client.InNamespace(ns)))
		require.NoError(t, meta.EachListItem(list, func(o runtime.Object) error {
			names = append(names, kind+"/"+o.(client.Object).GetName())
			return nil
		}))
	}
	var volumes corev1.PersistentVolumeList
	require.NoError(t, env.Client().List(t.Context(), &volumes))
	for i := range volumes.Items {
		if ref := volumes.Items[i].Spec.ClaimRef; ref != nil && ref.Namespace == ns {
			names = append(names, "PersistentVolume/"+volumes.Items[i].Name)
		}
	}
	return names
}

func awaitNothingLeft(t *testing.T, ns string) {
	t.Helper()
	var left []string
	require.True(t, testenv.Await(t, func() bool { left = listLeftovers(t, ns); return len(left) == 0 }), "still there: %v", left)
}
