//go:build linux

package testenv

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// NewMachine is a VirtualMachine of an image that was not created yet.
func NewMachine(namespace, name string, img *v1alpha1.VMDiskImage) *v1alpha1.VirtualMachine {
	return &v1alpha1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.VirtualMachineSpec{
			Resources:      &v1alpha1.MachineResources{Memory: ptr.To(resource.MustParse("1Gi"))},
			VMDiskImageRef: v1alpha1.ImageReference{Namespace: img.Namespace, Name: img.Name},
		},
	}
}

// AwaitMachine waits until a VirtualMachine meets a condition.
func (s *Env) AwaitMachine(t *testing.T, vm *v1alpha1.VirtualMachine, wanted func(*v1alpha1.VirtualMachine) bool) *v1alpha1.VirtualMachine {
	t.Helper()
	got, held := AwaitObject(t, s.Client(), client.ObjectKeyFromObject(vm), wanted)
	if !held {
		require.Failf(t, "machine is not as wanted", "%s/%s was last seen %s, %s: %s\npinned %+v\n%+v", vm.Namespace, vm.Name, got.Status.Phase, got.Status.Reason, got.Status.Message, got.Status.Pinned, got.Status.Conditions)
	}
	return got
}

// IsMachineReady reports a machine that is ready with its newest spec.
func IsMachineReady(vm *v1alpha1.VirtualMachine) bool {
	return vm.Status.Phase == v1alpha1.MachineReady && vm.Status.ObservedGeneration == vm.Generation
}

// MachineHasReason matches a machine's reason.
func MachineHasReason(reason v1alpha1.Reason) func(*v1alpha1.VirtualMachine) bool {
	return func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Reason == reason && vm.Status.ObservedGeneration == vm.Generation
	}
}

// IsConditionTrue reports whether a machine's condition is True, and its message.
func IsConditionTrue(vm *v1alpha1.VirtualMachine, condition string) (bool, string) {
	c := meta.FindStatusCondition(vm.Status.Conditions, condition)
	if c == nil {
		return false, "there is no such condition"
	}
	return c.Status == metav1.ConditionTrue, c.Message
}

// CreateNetworks creates NetworkAttachmentDefinitions.
func (s *Env) CreateNetworks(t *testing.T, namespace string, names ...string) {
	t.Helper()
	for _, name := range names {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": "{}"}}}
		u.SetGroupVersionKind(schema.GroupVersionKind{Group: "k8s.cni.cncf.io", Version: "v1", Kind: "NetworkAttachmentDefinition"})
		u.SetNamespace(namespace)
		u.SetName(name)
		s.Create(t, u)
	}
}
