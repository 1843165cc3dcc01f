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

// TestDecideKeepsALostDisk: CDI says Failed also of a DataVolume that had
// succeeded and whose claim is lost. What the guest has written is not deleted.
func TestDecideKeepsALostDisk(t *testing.T) {
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
			w := newWorld(t, apitest.VirtualMachine("ns", "vm")).cloned(golden(1), cdiv1.Failed)
			w.Now = w.Now.Add(time.Hour)
			if tt.claim != "" {
				w.RootClaim = claimOf(w.RootDisk, tt.claim)
				w.RootClaim.Annotations = map[string]string{podPhase: string(tt.pod)}
			}
			if tt.ready {
				w.VM.Status.RootDisk = &v1alpha1.RootDisk{DataVolume: "vm-root", Ready: true}
			}
			if !tt.kept {
				require.NotNil(t, w.visit().DeleteRootDisk)
				return
			}
			change := []func(){
				func() {},
				func() { w.Image = golden(2); w.there = false }, // what is pinned is gone
				func() { w.VM.Spec.VMDiskImageRef.Name, w.Image = "next", nil },
				func() { w.VM.Spec.IgnoreOnDeploy = true },
			}
			for _, c := range change {
				c()
				assert.Nil(t, w.visit().DeleteRootDisk)
				assert.Nil(t, w.visit().DeleteRootDisk, "nor the next time")
				assert.EqualValues(t, 1, w.VM.Status.Pinned.Attempt)
				assert.Equal(t, string(v1alpha1.ReasonRootDiskFailed), meta.FindStatusCondition(w.VM.Status.Conditions, v1alpha1.ConditionRootDiskReady).Reason)
				if !w.VM.Spec.IgnoreOnDeploy {
					w.says(v1alpha1.MachineFailed, v1alpha1.ReasonRootDiskFailed, "delete DataVolume vm-root to have another cloned")
				}
			}
			w.VM.Spec.IgnoreOnDeploy = false
			w.RootDisk.Status.Phase = cdiv1.Succeeded // it is found again
			w.visit()
			assert.True(t, w.has(v1alpha1.ConditionRootDiskReady))
			w.RootDisk.Status.Phase = cdiv1.Failed
			w.visit()
			deleted(w.RootDisk) // somebody gives it up
			w.visit()
			w.says(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloning, "is cloned again then")
			w.RootDisk, w.RootClaim, w.Image, w.there = nil, nil, golden(1), true
			w.VM.Spec.VMDiskImageRef.Name = "golden"
			w.repinned()
			require.NotNil(t, w.visit().CreateRootDisk)
			w.RootDisk.Status.Phase = cdiv1.Failed // that is a clone which is tried again
			w.Now = w.Now.Add(time.Hour)
			require.NotNil(t, w.visit().DeleteRootDisk)
		})
	}
}

// The status alone may know that a disk had been cloned.
func TestDecideRemembersALostDisk(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm")).cloned(golden(1), cdiv1.Failed)
	w.Now = w.Now.Add(time.Hour)
	w.VM.Status.RootDisk = &v1alpha1.RootDisk{DataVolume: "vm-root", Ready: true}
	w.RootClaim = claimOf(w.RootDisk, corev1.ClaimBound)
	former(w.RootClaim)
	w.visit()
	w.RootClaim = nil
	require.Nil(t, w.visit().DeleteRootDisk)
	w.says(v1alpha1.MachineFailed, v1alpha1.ReasonRootDiskFailed)
}
