package image

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/ledger"
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
		"another run strategy":               {func(vm *v1alpha1.VirtualMachine) { vm.Spec.RunStrategy = "Halted" }, false},
		"the same image, with its namespace": {func(vm *v1alpha1.VirtualMachine) { vm.Spec.VMDiskImageRef.Namespace = "ns" }, false},
		"another image":                      {func(vm *v1alpha1.VirtualMachine) { vm.Spec.VMDiskImageRef.Name = "another" }, true},
		"an image of another namespace":      {func(vm *v1alpha1.VirtualMachine) { vm.Spec.VMDiskImageRef.Namespace = "farm" }, true},
		"no pin":                             {func(vm *v1alpha1.VirtualMachine) { vm.Status.Pinned = nil }, true},
		"another pin":                        {func(vm *v1alpha1.VirtualMachine) { vm.Status.Pinned.Attempt = 2 }, true},
		"an acquired pin":                    {func(vm *v1alpha1.VirtualMachine) { vm.Status.Pinned.AcquiredAt = &now }, true},
		"a blank disk":                       {func(vm *v1alpha1.VirtualMachine) { vm.Spec.Disks = []v1alpha1.Disk{{Name: "data"}} }, false},
		"a disk of an image": {func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.Disks = []v1alpha1.Disk{{Name: "data", Image: &v1alpha1.ImageReference{Name: "tools"}}}
		}, true},
		"a pin of a disk": {func(vm *v1alpha1.VirtualMachine) {
			vm.Status.Disks = []v1alpha1.DataDisk{{Name: "data", Pinned: &v1alpha1.PinnedImage{}}}
		}, true},
		"a disk that is ready": {func(vm *v1alpha1.VirtualMachine) {
			vm.Status.Disks = []v1alpha1.DataDisk{{Name: "data", Volume: &v1alpha1.DiskVolume{Ready: true}}}
		}, false},
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

// TestFastQueueSparesPositions: an image that moves by one in each pace has passed the next power
// of ten when it is due, and one of a slow queue is due long before that.
func TestFastQueueSparesPositions(t *testing.T) {
	for position := 99; position < 100_000; position = 10*position + 9 {
		delay := positionRefreshDelay(position)
		assert.Less(t, position-int(delay/positionRefreshPace), (position+1)/10, "a fast queue, at %d", position)
		assert.Greater(t, position-int(delay/(20*positionRefreshPace)), (position+1)/10, "a slow queue, at %d", position)
	}
	assert.Equal(t, minPositionRefreshDelay, positionRefreshDelay(0))
}

func TestVMIsMappedToAllItsImages(t *testing.T) {
	vm := apitest.VirtualMachine("ns", "vm").WithImage("", "root").WithPin(v1alpha1.PinnedImage{ImageKey: v1alpha1.ImageKey{Namespace: "ns", Name: "former"}}).Obj()
	vm.Spec.Disks = []v1alpha1.Disk{{Name: "blank"}, {Name: "tools", Image: &v1alpha1.ImageReference{Namespace: "farm", Name: "tools"}}, {Name: "twice", Image: &v1alpha1.ImageReference{Name: "root"}}}
	vm.Status.Disks = []v1alpha1.DataDisk{{Name: "removed", Removed: true, Pinned: &v1alpha1.PinnedImage{ImageKey: v1alpha1.ImageKey{Namespace: "farm", Name: "kept"}}}}
	var names []string
	for _, request := range mapVMToImages(t.Context(), vm) {
		names = append(names, request.String())
	}
	assert.Equal(t, []string{"ns/root", "farm/tools", "ns/former", "farm/kept"}, names)
}

// TestReleasedImageRequeuesLedger: the ledger ends the attempt of an image that no agent reconciles.
func TestReleasedImageRequeuesLedger(t *testing.T) {
	triggers := 0
	r := &Reconciler{Queue: ledger.NewQueue(), EnqueueLedger: func() { triggers++ }}
	r.arrivals = arrivalTracker{queue: r.Queue, byUID: map[types.UID]arrivalRecord{}}
	requests := priorityqueue.New[reconcile.Request]("test")
	defer requests.ShutDown()
	before := apitest.Image("ns/a").WithFinalizer().WithStatus(v1alpha1.VMDiskImageStatus{Phase: v1alpha1.PhaseDeleting}).Deleted(apitest.Epoch).Obj()
	after := before.DeepCopy()
	after.Finalizers = []string{"example.com/hold"}
	r.imageEventHandler().Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: before}, requests)
	assert.Zero(t, triggers)
	r.imageEventHandler().Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, requests)
	assert.Equal(t, 1, triggers)
}
