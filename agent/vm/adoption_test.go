package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Whatever has lost its owner, in whatever state the machine is, gets it again.
func TestLostOwnersAreSetAgain(t *testing.T) {
	foreign := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "uid-of-x", Controller: ptr.To(true)}
	for name, change := range map[string]func(*world){
		"running":                  func(*world) {},
		"running, spec changed":    func(w *world) { w.VM.Spec.Version, w.VM.Generation = "2", 2 },
		"running, rendering older": func(w *world) { w.asCreatedBy02() },
		"stopped":                  func(w *world) { w.setKubeVirtStatus("Stopped", nil) },
		"spec invalid": func(w *world) {
			w.VM.Spec.Overlay = apitest.VirtualMachine("ns", "vm").WithOverlay(`{"running":true}`).Obj().Spec.Overlay
		},
		"Secret missing":       func(w *world) { w.MissingSecret = "Secret ns/s does not exist" },
		"ignored on deploy":    func(w *world) { w.VM.Spec.IgnoreOnDeploy = true },
		"disk lost":            func(w *world) { w.DataVolume.Status.Phase = cdiv1.Failed },
		"without a DataVolume": func(w *world) { w.DataVolume = nil },
		"with another owner": func(w *world) {
			for _, o := range w.children() {
				o.SetOwnerReferences([]metav1.OwnerReference{foreign})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
			w.Claim = rootDiskClaim(w.DataVolume, corev1.ClaimBound)
			assert.Empty(t, w.reconcile().Adopt, "nothing is missing")
			for _, o := range w.children() {
				o.SetOwnerReferences(nil)
			}
			change(w)
			w.reconcile()
			w.requireAllOwned()
			assert.Empty(t, w.reconcile().Adopt)
			if name == "with another owner" {
				assert.Equal(t, foreign, w.DataVolume.OwnerReferences[0], "it stays, and one owner is the controller")
				require.Len(t, w.DataVolume.OwnerReferences, 2)
				assert.Nil(t, w.DataVolume.OwnerReferences[1].Controller)
			}
		})
	}
}

// TestKubeVirtVMIsAdoptedFirst: a migration is recorded next, and a conflict ends the other adoptions.
func TestKubeVirtVMIsAdoptedFirst(t *testing.T) {
	w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
	w.migrateVolume("root", "fast")
	for _, o := range w.children() {
		o.SetOwnerReferences(nil)
	}
	d := w.reconcile()
	require.NotNil(t, d.RecordMigrations)
	require.Greater(t, len(d.Adopt), 1)
	assert.Equal(t, d.RecordMigrations.UID, d.Adopt[0].UID)
}

// An object has one controller: a second one would have each later change refused.
func TestAnotherControllerStays(t *testing.T) {
	w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm")).setKubeVirtStatus("Stopped", nil)
	foreign := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "uid-of-x", Controller: ptr.To(true)}
	w.KubeVirtVM.SetOwnerReferences([]metav1.OwnerReference{foreign})
	w.reconcile()
	w.requireAllOwned()
	assert.Nil(t, w.reconcile().ApplyKubeVirtVM, "nothing is left to change")
	w.VM.Spec.Version, w.VM.Generation = "2", 2
	applied := w.reconcile().ApplyKubeVirtVM
	require.NotNil(t, applied)
	require.Len(t, applied.GetOwnerReferences(), 2)
	assert.Equal(t, foreign, applied.GetOwnerReferences()[0])
	assert.Nil(t, applied.GetOwnerReferences()[1].Controller)
}

// What belongs to others, to a former machine, or is being deleted is not adopted.
func TestForeignObjectsAreNotAdopted(t *testing.T) {
	for name, change := range map[string]func(o metav1.Object){
		"of a former machine": func(o metav1.Object) { labelAsFormer(o) },
		"of others":           func(o metav1.Object) { o.SetLabels(nil) },
		"being deleted":       func(o metav1.Object) { markDeleted(o) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
			w.Claim = rootDiskClaim(w.DataVolume, corev1.ClaimBound)
			for _, o := range w.children() {
				o.SetOwnerReferences(nil)
				change(o)
			}
			assert.Empty(t, w.reconcile().Adopt)
			assert.NotEqual(t, v1alpha1.MachineReady, w.VM.Status.Phase)
		})
	}
}

// A claim outlives its DataVolume until it is garbage-collected, and is cached on its own: to
// adopt it would keep a failed or discarded disk.
func TestClaimsOfDeletedDataVolumesAreNotAdopted(t *testing.T) {
	for _, phase := range []corev1.PersistentVolumeClaimPhase{corev1.ClaimBound, corev1.ClaimPending} {
		t.Run(string(phase), func(t *testing.T) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Failed)
			w.Claim = rootDiskClaim(w.DataVolume, phase)
			w.DataVolume = nil
			d := w.reconcile()
			assert.Empty(t, d.Adopt)
			assert.Nil(t, d.ApplyKubeVirtVM, "it does not boot")
			w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk)
			w.Claim.OwnerReferences = nil // for example when its DataVolume was deleted without it
			assert.Len(t, w.reconcile().Adopt, 1)
			w.Claim = nil
			assert.NotEmpty(t, w.reconcile().CreateDisks, "another one is cloned")
		})
	}
}
