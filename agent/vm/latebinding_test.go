package vm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// awaitingStart are the disks that nobody fills before a person starts the machine, by name.
func awaitingStart(v vm.View) map[string]bool {
	late := map[string]bool{}
	if v.KubeVirtVM == nil {
		return late
	}
	run, _, _ := unstructured.NestedString(v.KubeVirtVM.Object, "spec", "runStrategy")
	status, _, _ := unstructured.NestedString(v.KubeVirtVM.Object, "status", "printableStatus")
	if status != "Stopped" || (run != "Halted" && run != "Manual") {
		return late
	}
	for _, disk := range checkedDisks(v, vm.Decision{}) {
		if dv := disk.DataVolume; dv != nil && (dv.Status.Phase == cdiv1.PendingPopulation || dv.Status.Phase == cdiv1.WaitForFirstConsumer) {
			late[disk.name] = true
		}
	}
	return late
}

// Where volumes bind late, nothing fills the disks of a machine that nobody starts: it is stopped,
// and the first start fills them.
func TestHaltedMachineWhoseVolumesBindLate(t *testing.T) {
	for name, tt := range map[string]struct {
		run, printable string
		phase          cdiv1.DataVolumePhase
		problem        *cdiv1.DataVolumeCondition
		wantPhase      v1alpha1.MachinePhase
		wantReason     v1alpha1.Reason
		want           string
	}{
		"halted":              {run: "Halted", printable: "Stopped", phase: cdiv1.PendingPopulation, wantPhase: v1alpha1.MachineReady, wantReason: v1alpha1.ReasonStopped, want: "the machine is stopped (runStrategy Halted); the root disk is cloned at the next start, since its StorageClass binds volumes late"},
		"halted, without CSI": {run: "Halted", printable: "Stopped", phase: cdiv1.WaitForFirstConsumer, wantPhase: v1alpha1.MachineReady, wantReason: v1alpha1.ReasonStopped, want: "at the next start"},
		"started by hand":     {run: "Manual", printable: "Stopped", phase: cdiv1.PendingPopulation, wantPhase: v1alpha1.MachineReady, wantReason: v1alpha1.ReasonStopped, want: "(runStrategy Manual); the root disk"},
		"being started":       {run: "Manual", printable: "Starting", phase: cdiv1.PendingPopulation, wantPhase: v1alpha1.MachineProvisioning, wantReason: v1alpha1.ReasonCloningRootDisk, want: "the root disk is being cloned"},
		"about to be started": {run: "Always", printable: "Stopped", phase: cdiv1.PendingPopulation, wantPhase: v1alpha1.MachineProvisioning, wantReason: v1alpha1.ReasonCloningRootDisk, want: "the root disk is being cloned"},
		"halted while cloned": {run: "Halted", printable: "Stopped", phase: cdiv1.CloneInProgress, wantPhase: v1alpha1.MachineProvisioning, wantReason: v1alpha1.ReasonCloningRootDisk, want: "the root disk is being cloned"},
		"halted, a person has to act": {run: "Halted", printable: "Stopped", phase: cdiv1.PendingPopulation, problem: &cdiv1.DataVolumeCondition{
			Type: cdiv1.DataVolumeBound, Status: corev1.ConditionFalse, Reason: "ErrExceededQuota", Message: "exceeded quota: q",
		}, wantPhase: v1alpha1.MachineFailed, wantReason: v1alpha1.ReasonQuotaExceeded, want: "exceeded quota: q"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithRunStrategy(v1alpha1.RunStrategy(tt.run))).withRootDisk(goldenImage(1), tt.phase)
			w.withKubeVirtVM(tt.printable, nil)
			if tt.problem != nil {
				w.DataVolume.Status.Conditions = []cdiv1.DataVolumeCondition{*tt.problem}
			}
			w.Now = w.Now.Add(5 * time.Hour)
			w.reconcile()
			w.requireState(tt.wantPhase, tt.wantReason, tt.want)
			assert.False(t, w.hasCondition(v1alpha1.ConditionRootDiskReady))
			require.Empty(t, w.lastDecision.DeleteDisks)
		})
	}
}

func TestDataDiskThatBindsLate(t *testing.T) {
	w := newRunningDisksWorld(t)
	w.VM.Spec.RunStrategy = "Halted"
	w.reconcile()
	w.setKubeVirtStatus("Stopped", map[string]any{"runStrategy": "Halted"})
	w.VM.Spec.Disks = append(w.VM.Spec.Disks, v1alpha1.Disk{Name: "late", Size: w.VM.Spec.Disks[1].Size})
	w.reconcile()
	require.Len(t, w.lastDecision.CreateDisks, 1)
	w.changeDisk("late", func(v *vm.DiskView) { v.DataVolume.Status.Phase = cdiv1.PendingPopulation })
	w.reconcile()
	w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonStopped, "disk late is created at the next start")
	assert.Equal(t, "disk late is created at the next start, since its StorageClass binds volumes late", w.conditionMessage(v1alpha1.ConditionDisksReady))

	w.VM.Spec.RunStrategy = "Always"
	w.reconcile()
	w.reconcile()
	w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonPreparingDataDisk, "disk late is being created")
}
