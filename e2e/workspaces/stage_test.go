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

	"github.com/pelotech/ot-fleet/agent/guest"
	"github.com/pelotech/ot-fleet/agent/machine"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// Tests that change the policy, or take a part of the member away, run before
// all others: those are parallel.

// policy is a quick one, with some of its keys changed.
func policy(keysAndValues ...string) map[string]string {
	data := map[string]string{"concurrency": "8", "retryLimit": "1", "retryBackoffDuration": "100ms"}
	for i := 0; i < len(keysAndValues); i += 2 {
		data[keysAndValues[i]] = keysAndValues[i+1]
	}
	return data
}

// setPolicy for one test.
func setPolicy(t *testing.T, keysAndValues ...string) {
	t.Helper()
	t.Cleanup(func() {
		cm := place.Policy()
		require.NoError(t, place.Client().Get(context.Background(), client.ObjectKeyFromObject(cm), cm))
		cm.Data = policy()
		require.NoError(t, place.Client().Update(context.Background(), cm))
	})
	place.SetPolicy(t, policy(keysAndValues...))
}

var (
	baseOnce sync.Once
	baseName = client.ObjectKey{Namespace: "base", Name: "image"}
)

// base is an image that serves, for machines whose image is not what is tested.
func base(t *testing.T) *v1alpha1.VMDiskImage {
	t.Helper()
	img := place.Snapshotted(baseName.Namespace, baseName.Name, "/ok/100ms/base")
	baseOnce.Do(func() {
		place.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: img.Namespace}}, img)
	})
	return succeeded(t, img)
}

func succeeded(t *testing.T, img *v1alpha1.VMDiskImage) *v1alpha1.VMDiskImage {
	t.Helper()
	return place.Eventually(t, img, scene.InPhase(v1alpha1.PhaseSucceeded))
}

// imported makes an image and waits until it serves.
func imported(t *testing.T, img *v1alpha1.VMDiskImage) *v1alpha1.VMDiskImage {
	t.Helper()
	place.Create(t, img)
	return succeeded(t, img)
}

// templated is a machine that makes the image which it names where it is missing.
func templated(namespace, name string, img *v1alpha1.VMDiskImage) *v1alpha1.VirtualMachine {
	vm := scene.Machine(namespace, name, img)
	vm.Spec.VMDiskImageTemplate = img.Spec.DeepCopy()
	return vm
}

// runs waits until a machine runs as its spec is now.
func runs(t *testing.T, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
	t.Helper()
	return place.EventuallyMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return scene.MachineReady(vm) && vm.Status.Reason == v1alpha1.ReasonRunning
	})
}

// started makes a machine and waits until it runs.
func started(t *testing.T, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
	t.Helper()
	place.Create(t, vm)
	return runs(t, vm)
}

func because(t *testing.T, vm *v1alpha1.VirtualMachine, reason v1alpha1.Reason) *v1alpha1.VirtualMachine {
	t.Helper()
	return place.EventuallyMachine(t, vm, scene.MachineBecause(reason))
}

// failsBecause waits until a person is to mend something.
func failsBecause(t *testing.T, vm *v1alpha1.VirtualMachine, reason v1alpha1.Reason) {
	t.Helper()
	place.EventuallyMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Phase == v1alpha1.MachineFailed && vm.Status.Reason == reason
	})
}

// says waits for a condition of a machine, and returns its message.
func says(t *testing.T, vm *v1alpha1.VirtualMachine, condition string, status metav1.ConditionStatus) string {
	t.Helper()
	got := place.EventuallyMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		c := meta.FindStatusCondition(vm.Status.Conditions, condition)
		return c != nil && c.Status == status && c.ObservedGeneration == vm.Generation
	})
	return meta.FindStatusCondition(got.Status.Conditions, condition).Message
}

// eventually reads an object until it is as wanted.
func eventually[T client.Object](t *testing.T, o T, what string, wanted func(T) bool) T {
	t.Helper()
	require.True(t, scene.Await(t, func() bool {
		return place.Client().Get(t.Context(), client.ObjectKeyFromObject(o), o) == nil && wanted(o)
	}), "%T %s is not as wanted: %s\n%+v", o, client.ObjectKeyFromObject(o), what, o)
	return o
}

func theirs(vm *v1alpha1.VirtualMachine) *kubevirtv1.VirtualMachine {
	return &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: vm.Name}}
}

func instance(vm *v1alpha1.VirtualMachine) *kubevirtv1.VirtualMachineInstance {
	return &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: vm.Name}}
}

func rootDisk(vm *v1alpha1.VirtualMachine) *cdiv1.DataVolume {
	return &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: machine.RootDiskName(vm)}}
}

func told(vm *v1alpha1.VirtualMachine) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: guest.SecretName(vm)}}
}

func snapshot(ns, name string) *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
}

// read an object that is there.
func read[T client.Object](t *testing.T, o T) T {
	t.Helper()
	require.NoError(t, place.Client().Get(t.Context(), client.ObjectKeyFromObject(o), o))
	return o
}

func remove(t *testing.T, o client.Object, how ...client.DeleteOption) {
	t.Helper()
	require.NoError(t, place.Client().Delete(t.Context(), o, how...))
}

// removed has an object deleted and waits until it is gone, or another of its
// name has come.
func removed(t *testing.T, o client.Object) {
	t.Helper()
	read(t, o)
	uid := o.GetUID()
	remove(t, o, client.Preconditions{UID: &uid})
	require.True(t, scene.Await(t, func() bool {
		err := place.Client().Get(t.Context(), client.ObjectKeyFromObject(o), o)
		return apierrors.IsNotFound(err) || (err == nil && o.GetUID() != uid)
	}), "%T %s is still there: finalizers %v", o, o.GetName(), o.GetFinalizers())
}

// run sets the run strategy of the KubeVirt machine, as virtctl does.
func run(t *testing.T, vm *v1alpha1.VirtualMachine, strategy kubevirtv1.VirtualMachineRunStrategy) {
	t.Helper()
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"runStrategy":"`+string(strategy)+`"}}`))
	require.NoError(t, place.Client().Patch(t.Context(), theirs(vm), patch))
}

// stopped stops a machine as virtctl does, and waits until it is off.
func stopped(t *testing.T, vm *v1alpha1.VirtualMachine) {
	t.Helper()
	run(t, vm, kubevirtv1.RunStrategyHalted)
	place.Gone(t, instance(vm))
	because(t, vm, v1alpha1.ReasonStopped)
}

// held waits until an image counts its holders as these.
func held(t *testing.T, img *v1alpha1.VMDiskImage, by ...*v1alpha1.VirtualMachine) *v1alpha1.VMDiskImage {
	t.Helper()
	var names []string
	for _, vm := range by {
		names = append(names, vm.Namespace+"/"+vm.Name)
	}
	return place.Eventually(t, img, func(img *v1alpha1.VMDiskImage) bool {
		refs := img.Status.References
		return int(refs.Count) == len(by) && assert.ObjectsAreEqual(names, refs.Holders) && (len(by) > 0) == (refs.UnreferencedSince == nil)
	})
}

// leftIn lists what machines are made of in a namespace, by kind and name.
func leftIn(t *testing.T, ns string) []string {
	t.Helper()
	var names []string
	for kind, list := range map[string]client.ObjectList{
		"VirtualMachine": &kubevirtv1.VirtualMachineList{}, "VirtualMachineInstance": &kubevirtv1.VirtualMachineInstanceList{},
		"DataVolume": &cdiv1.DataVolumeList{}, "PersistentVolumeClaim": &corev1.PersistentVolumeClaimList{},
		"Pod": &corev1.PodList{}, "Secret": &corev1.SecretList{},
	} {
		require.NoError(t, place.Client().List(t.Context(), list, client.InNamespace(ns)))
		require.NoError(t, meta.EachListItem(list, func(o runtime.Object) error {
			names = append(names, kind+"/"+o.(client.Object).GetName())
			return nil
		}))
	}
	var volumes corev1.PersistentVolumeList
	require.NoError(t, place.Client().List(t.Context(), &volumes))
	for i := range volumes.Items {
		if ref := volumes.Items[i].Spec.ClaimRef; ref != nil && ref.Namespace == ns {
			names = append(names, "PersistentVolume/"+volumes.Items[i].Name)
		}
	}
	return names
}

func wantNothingLeft(t *testing.T, ns string) {
	t.Helper()
	var left []string
	require.True(t, scene.Await(t, func() bool { left = leftIn(t, ns); return len(left) == 0 }), "still there: %v", left)
}
