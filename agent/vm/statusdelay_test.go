package vm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Only what the next status on the way replaces may wait.
func TestStatusDelay(t *testing.T) {
	stored := func() v1alpha1.VirtualMachineStatus {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithResources("1", "1Gi", "")).withRootDisk(goldenImage(1), cdiv1.CloneInProgress)
		w.reconcile()
		return w.VM.Status
	}
	set := func(st *v1alpha1.VirtualMachineStatus, condition, message string) {
		c := *meta.FindStatusCondition(st.Conditions, condition)
		c.Message = message
		meta.SetStatusCondition(&st.Conditions, c)
	}
	for name, tt := range map[string]struct {
		change func(*v1alpha1.VirtualMachineStatus)
		since  time.Duration
		want   time.Duration
	}{
		"progress": {func(st *v1alpha1.VirtualMachineStatus) {
			st.Reason, st.Message, st.RootDisk = v1alpha1.ReasonStarting, "starts", &v1alpha1.DiskVolume{DataVolume: "vm-root", Ready: true}
			set(st, v1alpha1.ConditionReady, "starts")
			set(st, v1alpha1.ConditionRootDiskReady, "has it")
		}, 300 * time.Millisecond, 9700 * time.Millisecond},
		"progress after a while":              {func(st *v1alpha1.VirtualMachineStatus) { st.Message = "starts" }, 10 * time.Second, 0},
		"nothing is known of the last":        {func(st *v1alpha1.VirtualMachineStatus) { st.Message = "starts" }, time.Duration(1<<63 - 1), 0},
		"the clock was set back":              {func(st *v1alpha1.VirtualMachineStatus) { st.Message = "starts" }, -time.Second, 0},
		"it runs":                             {func(st *v1alpha1.VirtualMachineStatus) { st.Phase = v1alpha1.MachineReady }, 0, 0},
		"it failed":                           {func(st *v1alpha1.VirtualMachineStatus) { st.Phase = v1alpha1.MachineFailed }, 0, 0},
		"something else holds it up":          {func(st *v1alpha1.VirtualMachineStatus) { st.Reason = v1alpha1.ReasonSecretMissing }, 0, 0},
		"the spec was seen":                   {func(st *v1alpha1.VirtualMachineStatus) { st.ObservedGeneration++ }, 0, 0},
		"another pin":                         {func(st *v1alpha1.VirtualMachineStatus) { st.Pinned.Attempt++ }, 0, 0},
		"the pin is acquired at another time": {func(st *v1alpha1.VirtualMachineStatus) { st.Pinned.AcquiredAt = ptr.To(metav1.Now()) }, 0, 0},
		"a data disk is complete":             {func(st *v1alpha1.VirtualMachineStatus) { st.Disks = []v1alpha1.DataDisk{{Name: "data"}} }, 0, 0},
		"the spec is adjusted":                {func(st *v1alpha1.VirtualMachineStatus) { set(st, v1alpha1.ConditionSpecAdjusted, "grown") }, 0, 0},
		"a condition is new": {func(st *v1alpha1.VirtualMachineStatus) {
			st.Conditions = append(st.Conditions, metav1.Condition{Type: "New"})
		}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := stored(), stored()
			tt.change(&after)
			assert.Equal(t, tt.want, vm.StatusDelay(&before, &after, tt.since))
		})
	}
}
