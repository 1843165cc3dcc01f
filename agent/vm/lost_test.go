package vm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestLostRootDiskIsNotDeleted: CDIServed says Failed also of a DataVolume that had
// succeeded and whose claim is lost. What the guest has written is not deleted.
func TestLostRootDiskIsNotDeleted(t *testing.T) {
	const podPhase = "cdi.kubevirt.io/storage.pod.phase"
	for name, tt := range map[string]struct {
		ready bool
		claim corev1.PersistentVolumeClaimPhase
		pod   corev1.PodPhase
		kept  bool
	}{
		"that was ready":                     {ready: true, kept: true},
		"whose claim is lost":                {claim: corev1.ClaimLost, kept: true},
		"whose claim is lost, and was ready": {ready: true, claim: corev1.ClaimLost, kept: true},
		"whose claim is bound":               {claim: corev1.ClaimBound, kept: true},
		"that a Pod has filled":              {claim: corev1.ClaimBound, pod: corev1.PodSucceeded, kept: true},
		"that a Pod failed to fill":          {claim: corev1.ClaimBound, pod: corev1.PodFailed},
		"that was never bound":               {claim: corev1.ClaimPending},
		"without a claim":                    {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Failed)
			w.Now = w.Now.Add(time.Hour)
			if tt.claim != "" {
				w.RootClaim = rootDiskClaim(w.RootDisk, tt.claim)
				w.RootClaim.Annotations = map[string]string{podPhase: string(tt.pod)}
			}
			if tt.ready {
				w.VM.Status.RootDisk = &v1alpha1.RootDisk{DataVolume: "vm-root", Ready: true}
			}
			if !tt.kept {
				require.NotNil(t, w.reconcile().DeleteRootDisk)
				return
			}
			change := []func(){
				func() {},
				func() { w.Image = goldenImage(2); w.sourceExists = false }, // what is pinned is gone
				func() { w.VM.Spec.VMDiskImageRef.Name, w.Image = "next", nil },
				func() { w.VM.Spec.IgnoreOnDeploy = true },
			}
			for _, c := range change {
				c()
				assert.Nil(t, w.reconcile().DeleteRootDisk)
				assert.Nil(t, w.reconcile().DeleteRootDisk, "nor the next time")
				assert.EqualValues(t, 1, w.VM.Status.Pinned.Attempt)
				assert.Equal(t, string(v1alpha1.ReasonRootDiskFailed), meta.FindStatusCondition(w.VM.Status.Conditions, v1alpha1.ConditionRootDiskReady).Reason)
				if !w.VM.Spec.IgnoreOnDeploy {
					w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonRootDiskFailed, "delete DataVolume vm-root to have another cloned")
				}
			}
			w.VM.Spec.IgnoreOnDeploy = false
			w.RootDisk.Status.Phase = cdiv1.Succeeded // it is found again
			w.reconcile()
			assert.True(t, w.hasCondition(v1alpha1.ConditionRootDiskReady))
			w.RootDisk.Status.Phase = cdiv1.Failed
			w.reconcile()
			markDeleted(w.RootDisk) // somebody gives it up
			w.reconcile()
			w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk, "is cloned again then")
			w.RootDisk, w.RootClaim, w.Image, w.sourceExists = nil, nil, goldenImage(1), true
			w.VM.Spec.VMDiskImageRef.Name = "golden"
			w.refreshPinned()
			require.NotNil(t, w.reconcile().CreateRootDisk)
			w.RootDisk.Status.Phase = cdiv1.Failed // that is a clone which is tried again
			w.Now = w.Now.Add(time.Hour)
			require.NotNil(t, w.reconcile().DeleteRootDisk)
		})
	}
}

// The status alone may know that a disk had been cloned.
func TestLostRootDiskStaysInStatus(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Failed)
	w.Now = w.Now.Add(time.Hour)
	w.VM.Status.RootDisk = &v1alpha1.RootDisk{DataVolume: "vm-root", Ready: true}
	w.RootClaim = rootDiskClaim(w.RootDisk, corev1.ClaimBound)
	labelAsFormer(w.RootClaim)
	w.reconcile()
	w.RootClaim = nil
	require.Nil(t, w.reconcile().DeleteRootDisk)
	w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonRootDiskFailed)
}
