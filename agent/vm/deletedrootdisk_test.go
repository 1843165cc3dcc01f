package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestRootDiskDeletedUnderRunningMachine: its claim stays while the instance runs, so that somebody has
// to stop the machine.
func TestRootDiskDeletedUnderRunningMachine(t *testing.T) {
	for name, remove := range map[string]func(*world){
		"DataVolume gone":                      func(w *world) { w.DataVolume = nil },
		"DataVolume deleted in the foreground": func(w *world) { markDeleted(w.DataVolume) },
	} {
		t.Run(name, func(t *testing.T) {
			newDeleted := func(t *testing.T) *world {
				w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
				w.Claim = rootDiskClaim(w.DataVolume, corev1.ClaimBound)
				markDeleted(w.Claim)
				remove(w)
				return w
			}
			t.Run("which nobody stops", func(t *testing.T) {
				w := newDeleted(t)
				w.reconcile()
				w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonRootDiskFailed, "is being deleted, but stays while the machine runs with it", "virtctl -n ns stop vm")
				assert.Empty(t, w.lastDecision.CreateDisks)
			})
			t.Run("stopped by virtctl", func(t *testing.T) {
				w := newDeleted(t)
				require.NoError(t, unstructured.SetNestedField(w.KubeVirtVM.Object, "Halted", "spec", "runStrategy"))
				w.reconcile()
				w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk)
				w.setKubeVirtStatus("Stopped", map[string]any{"runStrategy": "Halted"})
				w.DataVolume, w.Claim = nil, nil
				require.Len(t, w.reconcile().CreateDisks, 1)
			})
			t.Run("stopped by its spec", func(t *testing.T) {
				w := newDeleted(t)
				w.VM.Spec.RunStrategy = "Halted"
				assert.Equal(t, v1alpha1.RunStrategy("Halted"), w.reconcile().RunStrategy)
				w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk)
				assert.Empty(t, w.reconcile().RunStrategy)
			})
			t.Run("ending", func(t *testing.T) {
				w := newDeleted(t)
				w.setKubeVirtStatus("Stopping", map[string]any{"created": true, "runStrategy": "Always"}).reconcile()
				w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk)
			})
		})
	}
}

// TestInvalidMachineIsStopped: what is wrong with its spec does not matter for that.
func TestInvalidMachineIsStopped(t *testing.T) {
	w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
	w.VM.Spec.Users = []v1alpha1.User{{Name: "ann", PasswordSecretRef: &v1alpha1.SecretKey{Name: "s", Key: "k"}}}
	w.Inputs.Passwords = map[string]string{"ann": ""}
	w.VM.Spec.RunStrategy = "Halted"
	assert.Equal(t, v1alpha1.RunStrategy("Halted"), w.reconcile().RunStrategy)
	w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonSpecInvalid)
}
