package vm

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestMachinesAffectedByImageChange(t *testing.T) {
	now := metav1.Now()
	for name, tt := range map[string]struct {
		change func(*v1alpha1.VMDiskImage)
		want   affectedMachines
	}{
		"no change": {func(*v1alpha1.VMDiskImage) {}, noMachines},
		"holders": {func(img *v1alpha1.VMDiskImage) {
			img.Status.References = v1alpha1.References{Count: 2, Holders: []string{"ns/a", "ns/b"}}
			img.Status.Conditions = []metav1.Condition{{Type: "Ready", Message: "in other words"}}
		}, noMachines},
		"transferred bytes": {func(img *v1alpha1.VMDiskImage) {
			img.Status.BytesDone = 7
			img.Status.Revisions[0].ProgressedAt = &now
		}, noMachines},
		"finalizer":      {func(img *v1alpha1.VMDiskImage) { img.Finalizers = []string{"x"} }, noMachines},
		"progress":       {func(img *v1alpha1.VMDiskImage) { img.Status.Progress = "12.0%" }, waitingMachines},
		"queue position": {func(img *v1alpha1.VMDiskImage) { img.Status.QueuePosition = ptr.To[int32](1) }, waitingMachines},
		"message":        {func(img *v1alpha1.VMDiskImage) { img.Status.Message = "held by ns/a" }, waitingMachines},
		"phase":          {func(img *v1alpha1.VMDiskImage) { img.Status.Phase = v1alpha1.PhaseDeleting }, allMachines},
		"reason":         {func(img *v1alpha1.VMDiskImage) { img.Status.Reason = v1alpha1.ReasonReferenced }, allMachines},
		"serving":        {func(img *v1alpha1.VMDiskImage) { img.Status.Serving = &v1alpha1.Serving{Attempt: 2} }, allMachines},
		"needs a person": {func(img *v1alpha1.VMDiskImage) {
			img.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue}}
		}, allMachines},
		"tear-down":       {func(img *v1alpha1.VMDiskImage) { img.Status.TearDown = true }, allMachines},
		"revision":        {func(img *v1alpha1.VMDiskImage) { img.Status.Revisions[0].VolumeSnapshot = "another" }, allMachines},
		"spec":            {func(img *v1alpha1.VMDiskImage) { img.Spec.SecretRef = "another" }, allMachines},
		"deletion":        {func(img *v1alpha1.VMDiskImage) { img.DeletionTimestamp = &now }, allMachines},
		"recreated image": {func(img *v1alpha1.VMDiskImage) { img.UID = "another" }, allMachines},
	} {
		t.Run(name, func(t *testing.T) {
			before := apitest.Image("ns/golden").WithStatus(v1alpha1.VMDiskImageStatus{
				Phase: v1alpha1.PhaseSucceeded, Revisions: []v1alpha1.RevisionStatus{{Revision: "r", Attempt: 1}},
			}).Obj()
			after := before.DeepCopy()
			tt.change(after)
			assert.Equal(t, tt.want, machinesAffectedBy(before, after))
		})
	}
}

func TestAwaitsDisk(t *testing.T) {
	vm := apitest.VirtualMachine("ns", "vm").Obj()
	assert.True(t, awaitsDisk(vm))
	vm.Status.RootDisk = &v1alpha1.DiskVolume{}
	assert.True(t, awaitsDisk(vm))
	vm.Status.RootDisk.Ready = true
	assert.False(t, awaitsDisk(vm))
	vm.Status.Disks = []v1alpha1.DataDisk{{Name: "removed", Removed: true}, {Name: "ready", Volume: &v1alpha1.DiskVolume{Ready: true}}}
	assert.False(t, awaitsDisk(vm))
	vm.Status.Disks = append(vm.Status.Disks, v1alpha1.DataDisk{Name: "data"})
	assert.True(t, awaitsDisk(vm))
}

// The removal of the agent's finalizer alone releases an image.
func TestReleasedImageAffectsAllMachines(t *testing.T) {
	before := apitest.Image("ns/golden").WithFinalizer().Deleted(metav1.Now().Time).Obj()
	after := before.DeepCopy()
	after.Finalizers = []string{"example.com/hold"}
	assert.Equal(t, allMachines, machinesAffectedBy(before, after))
	before.Finalizers = after.Finalizers
	assert.Equal(t, noMachines, machinesAffectedBy(before, after))
}
