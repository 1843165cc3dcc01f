package kubevirt

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/agent/cachebounds"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ownerReference makes a machine the owner of a child. It has no blockOwnerDeletion, which
// requires the right to update finalizers of the owner.
func ownerReference(vm *v1alpha1.VirtualMachine) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "VirtualMachine", Name: vm.Name, UID: vm.UID, Controller: ptr.To(true)}
}

// IsMadeFor reports whether an object was created for a machine, or given to it by its label.
func IsMadeFor(o metav1.Object, vm *v1alpha1.VirtualMachine) bool {
	return o.GetLabels()[v1alpha1.LabelMachineUID] == string(vm.UID)
}

// PreserveOwners keeps the owners of the live KubeVirt VirtualMachine: an object has one
// controller, and it may be another's.
func PreserveOwners(desired, live *unstructured.Unstructured, vm *v1alpha1.VirtualMachine) {
	owners := AdoptedOwners(live, vm, nil)
	if owners == nil {
		owners = live.GetOwnerReferences()
	}
	if controller := metav1.GetControllerOf(live); controller != nil && controller.UID != vm.UID {
		desired.SetOwnerReferences(owners)
	}
}

// AdoptedOwners returns the owner references of an object that was made for a machine and would
// not be deleted with it: those that it has, and the machine's. It returns nil where none is
// missing. rootDisk is the DataVolume of the machine, which owns its claim; it may be nil: then
// a claim that a DataVolume owns is about to be garbage-collected, and another owner would keep
// the failed or discarded disk.
func AdoptedOwners(o metav1.Object, vm *v1alpha1.VirtualMachine, rootDisk metav1.Object) []metav1.OwnerReference {
	if !IsMadeFor(o, vm) || o.GetDeletionTimestamp() != nil {
		return nil
	}
	owners := o.GetOwnerReferences()
	if len(owners) >= cachebounds.MaxOwners || slices.ContainsFunc(owners, func(owner metav1.OwnerReference) bool {
		return owner.UID == vm.UID || (owner.Kind == "DataVolume" && (rootDisk == nil || owner.UID == rootDisk.GetUID()))
	}) {
		return nil
	}
	owner := ownerReference(vm)
	if rootDisk != nil || metav1.GetControllerOf(o) != nil {
		owner.Controller = nil // the controller of a claim is its DataVolume, or gets to be
	}
	return append(slices.Clone(owners), owner)
}
