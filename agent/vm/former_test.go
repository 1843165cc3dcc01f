package vm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestLeftoversOfFormerMachineBlock: what is owned goes, and is waited for;
// what was orphaned, or restored from a backup, never does.
func TestLeftoversOfFormerMachineBlock(t *testing.T) {
	const label = "pelotech.ot/machine-uid=uid-of-new --overwrite"
	of := map[string]struct {
		pick func(*world) metav1.Object
		says []string
	}{
		"root disk":                     {func(w *world) metav1.Object { return w.RootDisk }, []string{"what a guest has written is lost", "kubectl -n ns label datavolume,persistentvolumeclaim vm-root " + label}},
		"claim of a disk that is there": {func(w *world) metav1.Object { return w.RootClaim }, []string{"what a guest has written is lost", "kubectl -n ns label datavolume,persistentvolumeclaim vm-root " + label}},
		"claim":                         {func(w *world) metav1.Object { w.RootDisk = nil; return w.RootClaim }, []string{"label datavolume,persistentvolumeclaim vm-root " + label}},
		"Secret":                        {func(w *world) metav1.Object { return w.CloudInitSecret }, []string{"label secret vm-cloudinit " + label}},
		"machine":                       {func(w *world) metav1.Object { return w.KubeVirtVM }, []string{"label virtualmachines.kubevirt.io vm " + label}},
	}
	made := func(t *testing.T) *world {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm"))
		w.VM.UID = "uid-of-new"
		w.withRootDisk(goldenImage(1), cdiv1.Succeeded)
		w.RootClaim = rootDiskClaim(w.RootDisk, corev1.ClaimBound)
		w.withRunningVM()
		w.VM.CreationTimestamp = metav1.NewTime(w.Now)
		return w
	}
	for name, tt := range of {
		t.Run(name+" that nobody owns", func(t *testing.T) {
			w := made(t)
			o := tt.pick(w)
			labelAsFormer(o)
			if name != "claim of a disk that is there" { // that is its DataVolume's, which stays
				o.SetOwnerReferences(nil)
			}
			w.reconcile()
			w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonNameTaken, tt.says...)
			assert.Equal(t, 30*time.Second, w.lastDecision.RequeueAfter)
			assert.Nil(t, w.lastDecision.DeleteRootDisk)

			o.SetLabels(map[string]string{v1alpha1.LabelMachineUID: "uid-of-new"})
			w.reconcile()
			w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
		})
		t.Run(name+" that is owned", func(t *testing.T) {
			w := made(t)
			o := tt.pick(w)
			labelAsFormer(o)
			o.SetOwnerReferences([]metav1.OwnerReference{{Kind: "VirtualMachine", Name: "vm", UID: "uid-of-former", Controller: ptr.To(true)}})
			for age, after := range map[time.Duration]time.Duration{0: time.Second, 10 * time.Second: time.Second, 2 * time.Minute: 12 * time.Second, time.Hour: 30 * time.Second} {
				w.Now = w.VM.CreationTimestamp.Add(age)
				w.reconcile()
				w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonNameTaken, "waits until it is removed")
				assert.Equal(t, after, w.lastDecision.RequeueAfter, age)
			}
			w.Now = w.VM.CreationTimestamp.Add(time.Hour)
			o.SetDeletionTimestamp(ptr.To(metav1.NewTime(w.Now)))
			w.reconcile()
			assert.Equal(t, time.Second, w.lastDecision.RequeueAfter, "it is being removed only now")
		})
	}
}
