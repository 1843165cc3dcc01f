package image

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestHoldChangedPredicate(t *testing.T) {
	now := metav1.Now()
	for name, tt := range map[string]struct {
		change func(*v1alpha1.VirtualMachine)
		want   bool
	}{
		"nothing": {func(*v1alpha1.VirtualMachine) {}, false},
		"status": {func(vm *v1alpha1.VirtualMachine) {
			vm.Status.Phase, vm.Status.Message, vm.Status.PrintableStatus = v1alpha1.MachineReady, "runs", "Running"
			vm.Status.Image = &v1alpha1.MachineImage{Progress: "12.0%"}
			vm.Status.RootDisk = &v1alpha1.DiskVolume{DataVolume: "vm-root", Ready: true}
		}, false},
		"another run strategy":                {func(vm *v1alpha1.VirtualMachine) { vm.Spec.RunStrategy = "Halted" }, false},
		"the same image, with its namespace":  {func(vm *v1alpha1.VirtualMachine) { vm.Spec.VMDiskImageRef.Namespace = "ns" }, false},
		"another image":                       {func(vm *v1alpha1.VirtualMachine) { vm.Spec.VMDiskImageRef.Name = "another" }, true},
		"an image of another namespace":       {func(vm *v1alpha1.VirtualMachine) { vm.Spec.VMDiskImageRef.Namespace = "farm" }, true},
		"no pin":                              {func(vm *v1alpha1.VirtualMachine) { vm.Status.Pinned = nil }, true},
		"another pin":                         {func(vm *v1alpha1.VirtualMachine) { vm.Status.Pinned.Attempt = 2 }, true},
		"an acquired pin":                     {func(vm *v1alpha1.VirtualMachine) { vm.Status.Pinned.AcquiredAt = &now }, true},
		"deleted":                             {func(vm *v1alpha1.VirtualMachine) { vm.DeletionTimestamp = &now }, true},
		"another VirtualMachine of that name": {func(vm *v1alpha1.VirtualMachine) { vm.UID = "another" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			before := apitest.VirtualMachine("ns", "vm").WithPin(v1alpha1.PinnedImage{ImageKey: v1alpha1.ImageKey{UID: "uid"}, Attempt: 1}).Obj()
			after := before.DeepCopy()
			tt.change(after)
			assert.Equal(t, tt.want, holdChangedPredicate().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}))
		})
	}
	vm := apitest.VirtualMachine("ns", "vm").Obj()
	assert.True(t, holdChangedPredicate().Create(event.CreateEvent{Object: vm}))
	assert.True(t, holdChangedPredicate().Delete(event.DeleteEvent{Object: vm}))
}
