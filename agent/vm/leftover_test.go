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

// Owned leftovers are garbage-collected; orphaned or restored ones need a person.
func TestLeftoversOfFormerMachineBlock(t *testing.T) {
	const label = "pelotech.ot/machine-uid=uid-of-new --overwrite"
	leftovers := map[string]struct {
		pick func(*world) metav1.Object
		want []string
	}{
		"root disk":                 {func(w *world) metav1.Object { return w.DataVolume }, []string{"this loses what the guest has written", "kubectl -n ns label datavolume,persistentvolumeclaim vm-root " + label}},
		"claim of an existing disk": {func(w *world) metav1.Object { return w.Claim }, []string{"this loses what the guest has written", "kubectl -n ns label datavolume,persistentvolumeclaim vm-root " + label}},
		"claim":                     {func(w *world) metav1.Object { w.DataVolume = nil; return w.Claim }, []string{"label datavolume,persistentvolumeclaim vm-root " + label}},
		"machine":                   {func(w *world) metav1.Object { return w.KubeVirtVM }, []string{"label virtualmachines.kubevirt.io vm " + label}},
	}
	newWorldWithAll := func(t *testing.T) *world {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm"))
		w.VM.UID = "uid-of-new"
		w.withRootDisk(goldenImage(1), cdiv1.Succeeded)
		w.Claim = rootDiskClaim(w.DataVolume, corev1.ClaimBound)
		w.withRunningVM()
		w.VM.CreationTimestamp = metav1.NewTime(w.Now)
		return w
	}
	for name, tt := range leftovers {
		t.Run(name+" without owner", func(t *testing.T) {
			w := newWorldWithAll(t)
			o := tt.pick(w)
			labelAsFormer(o)
			if name != "claim of an existing disk" { // its DataVolume stays its owner
				o.SetOwnerReferences(nil)
			}
			w.reconcile()
			w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonNameTaken, tt.want...)
			assert.Equal(t, 30*time.Second, w.lastDecision.RequeueAfter)
			assert.Empty(t, w.lastDecision.DeleteDisks)

			o.SetLabels(map[string]string{v1alpha1.LabelMachineUID: "uid-of-new"})
			w.reconcile()
			w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
			w.requireAllOwned()
			assert.Empty(t, w.reconcile().Adopt)
		})
		t.Run(name+" with owner", func(t *testing.T) {
			w := newWorldWithAll(t)
			o := tt.pick(w)
			labelAsFormer(o)
			o.SetOwnerReferences([]metav1.OwnerReference{{Kind: "VirtualMachine", Name: "vm", UID: "uid-of-former", Controller: ptr.To(true)}})
			for age, after := range map[time.Duration]time.Duration{0: time.Second, 10 * time.Second: time.Second, 2 * time.Minute: 12 * time.Second, time.Hour: 30 * time.Second} {
				w.Now = w.VM.CreationTimestamp.Add(age)
				w.reconcile()
				w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonNameTaken, "waiting until it is removed")
				assert.Equal(t, after, w.lastDecision.RequeueAfter, age)
			}
			w.Now = w.VM.CreationTimestamp.Add(time.Hour)
			o.SetDeletionTimestamp(ptr.To(metav1.NewTime(w.Now)))
			w.reconcile()
			assert.Equal(t, time.Second, w.lastDecision.RequeueAfter, "its deletion has just begun")
		})
	}
}
