//go:build linux

// Package workspaces shows VirtualMachines as authors of workspaces use them: creation,
// changes, restarts, lost objects, deletion. It takes real clones by CDI, and KubeVirt's
// virt-controller and admission webhooks; the virt-handler is simulated.
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
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

var env *testenv.Env

func TestMain(m *testing.M) {
	testenv.RunTests(m, &env, member.Options{
		Name: "workspaces", KubeVirt: true,
		APIServerArgs: []string{"--enable-admission-plugins=OwnerReferencesPermissionEnforcement"}, // as in OpenShift
	}, true)
}

// Tests that change the policy or stop a part of the member are not parallel, so that they
// run before all others.

// newPolicy returns a policy with short waits and some of its keys changed.
func newPolicy(keysAndValues ...string) map[string]string {
	data := map[string]string{"concurrency": "8", "retryLimit": "1", "retryBackoffDuration": "100ms"}
	for i := 0; i < len(keysAndValues); i += 2 {
		data[keysAndValues[i]] = keysAndValues[i+1]
	}
	return data
}

// setPolicyForTest changes the policy until the test ends.
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

// sharedImage returns a ready image for tests whose subject is not the image.
func sharedImage(t *testing.T) *v1alpha1.VMDiskImage {
	t.Helper()
	img := env.NewSnapshottedImage(sharedImageName.Namespace, sharedImageName.Name, "/ok/100ms/base")
	sharedImageOnce.Do(func() {
		env.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: img.Namespace}}, img)
	})
	return env.AwaitSucceeded(t, img)
}

// withImageTemplate returns a VM with a template of its image.
func withImageTemplate(namespace, name string, img *v1alpha1.VMDiskImage) *v1alpha1.VirtualMachine {
	vm := testenv.NewMachine(namespace, name, img)
	vm.Spec.VMDiskImageTemplate = img.Spec.DeepCopy()
	return vm
}

// awaitRunning waits until a VM runs its current spec.
func awaitRunning(t *testing.T, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
	t.Helper()
	return env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return testenv.IsMachineReady(vm) && vm.Status.Reason == v1alpha1.ReasonRunning
	})
}

// createAndAwaitRunning creates a VM and waits until it runs.
func createAndAwaitRunning(t *testing.T, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
	t.Helper()
	env.Create(t, vm)
	return awaitRunning(t, vm)
}

func awaitReason(t *testing.T, vm *v1alpha1.VirtualMachine, reason v1alpha1.Reason) *v1alpha1.VirtualMachine {
	t.Helper()
	return env.AwaitMachine(t, vm, testenv.MachineHasReason(reason))
}

// awaitFailure waits until a VM has phase Failed with a reason.
func awaitFailure(t *testing.T, vm *v1alpha1.VirtualMachine, reason v1alpha1.Reason) {
	t.Helper()
	env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Phase == v1alpha1.MachineFailed && vm.Status.Reason == reason
	})
}

// awaitCondition waits for the status of a condition and returns its message.
func awaitCondition(t *testing.T, vm *v1alpha1.VirtualMachine, condition string, status metav1.ConditionStatus) string {
	t.Helper()
	got := env.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		c := meta.FindStatusCondition(vm.Status.Conditions, condition)
		return c != nil && c.Status == status && c.ObservedGeneration == vm.Generation
	})
	return meta.FindStatusCondition(got.Status.Conditions, condition).Message
}

// awaitObject waits until an object matches and returns it.
func awaitObject[T client.Object](t *testing.T, o T, what string, wanted func(T) bool) T {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return env.Client().Get(t.Context(), client.ObjectKeyFromObject(o), o) == nil && wanted(o)
	}), "%T %s: timed out waiting for: %s\n%+v", o, client.ObjectKeyFromObject(o), what, o)
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

// requireObject reads an object that must exist.
func requireObject[T client.Object](t *testing.T, o T) T {
	t.Helper()
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(o), o))
	return o
}

func deleteObject(t *testing.T, o client.Object, options ...client.DeleteOption) {
	t.Helper()
	require.NoError(t, env.Client().Delete(t.Context(), o, options...))
}

// deleteAndAwaitGone deletes an object and waits until it is gone or replaced.
func deleteAndAwaitGone(t *testing.T, o client.Object) {
	t.Helper()
	requireObject(t, o)
	uid := o.GetUID()
	deleteObject(t, o, client.Preconditions{UID: &uid})
	require.True(t, testenv.AwaitCondition(t, func() bool {
		err := env.Client().Get(t.Context(), client.ObjectKeyFromObject(o), o)
		return apierrors.IsNotFound(err) || (err == nil && o.GetUID() != uid)
	}), "%T %s still exists: finalizers %v", o, o.GetName(), o.GetFinalizers())
}

// setRunStrategy sets the run strategy of the KubeVirt VM, as virtctl does.
func setRunStrategy(t *testing.T, vm *v1alpha1.VirtualMachine, strategy kubevirtv1.VirtualMachineRunStrategy) {
	t.Helper()
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"runStrategy":"`+string(strategy)+`"}}`))
	require.NoError(t, env.Client().Patch(t.Context(), kubeVirtVMOf(vm), patch))
}

// stopVM stops a VM as virtctl does, and waits until it is off.
func stopVM(t *testing.T, vm *v1alpha1.VirtualMachine) {
	t.Helper()
	setRunStrategy(t, vm, kubevirtv1.RunStrategyHalted)
	env.AwaitGone(t, kubeVirtVMIOf(vm))
	awaitReason(t, vm, v1alpha1.ReasonStopped)
}

// awaitHolders waits until exactly these VMs hold an image.
func awaitHolders(t *testing.T, img *v1alpha1.VMDiskImage, holders ...*v1alpha1.VirtualMachine) *v1alpha1.VMDiskImage {
	t.Helper()
	var names []string
	for _, vm := range holders {
		names = append(names, vm.Namespace+"/"+vm.Name)
	}
	return env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
		refs := img.Status.References
		return int(refs.Count) == len(holders) && assert.ObjectsAreEqual(names, refs.Holders) && (len(holders) > 0) == (refs.UnreferencedSince == nil)
	})
}

// listLeftovers lists the objects of VMs in a namespace, by kind and name.
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
	require.True(t, testenv.AwaitCondition(t, func() bool { left = listLeftovers(t, ns); return len(left) == 0 }), "left: %v", left)
}

// deleteAndAwaitNothingLeft deletes a VM that is alone in its namespace.
func deleteAndAwaitNothingLeft(t *testing.T, vm *v1alpha1.VirtualMachine) {
	t.Helper()
	deleteObject(t, vm)
	env.AwaitGone(t, vm)
	awaitNothingLeft(t, vm.Namespace)
}
