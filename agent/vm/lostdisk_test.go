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

// CDI sets Failed also on a finished DataVolume whose claim is lost. What the guest has written must
// not be deleted.
func TestLostRootDiskIsNotDeleted(t *testing.T) {
	const podPhase = "cdi.kubevirt.io/storage.pod.phase"
	for name, tt := range map[string]struct {
		ready bool
		claim corev1.PersistentVolumeClaimPhase
		pod   corev1.PodPhase
		keep  bool
	}{
		"was ready":                {ready: true, keep: true},
		"claim is lost":            {claim: corev1.ClaimLost, keep: true},
		"claim is lost, was ready": {ready: true, claim: corev1.ClaimLost, keep: true},
		"claim is bound":           {claim: corev1.ClaimBound, keep: true},
		"Pod filled it":            {claim: corev1.ClaimBound, pod: corev1.PodSucceeded, keep: true},
		"Pod failed to fill it":    {claim: corev1.ClaimBound, pod: corev1.PodFailed},
		"claim was never bound":    {claim: corev1.ClaimPending},
		"without a claim":          {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Failed)
			w.Now = w.Now.Add(time.Hour)
			if tt.claim != "" {
				w.Claim = rootDiskClaim(w.DataVolume, tt.claim)
				w.Claim.Annotations = map[string]string{podPhase: string(tt.pod)}
			}
			if tt.ready {
				w.VM.Status.RootDisk = &v1alpha1.DiskVolume{DataVolume: "vm-root", Ready: true}
			}
			if !tt.keep {
				require.NotEmpty(t, w.reconcile().DeleteDisks)
				return
			}
			change := []func(){
				func() {},
				func() { w.Image = goldenImage(2); w.sourceExists = false }, // the source is gone
				func() { w.VM.Spec.VMDiskImageRef.Name, w.Image = "next", nil },
				func() { w.VM.Spec.IgnoreOnDeploy = true },
			}
			for _, c := range change {
				c()
				assert.Empty(t, w.reconcile().DeleteDisks)
				assert.Empty(t, w.reconcile().DeleteDisks, "nor at the next decision")
				assert.EqualValues(t, 1, w.VM.Status.Pinned.Attempt)
				assert.Equal(t, string(v1alpha1.ReasonRootDiskFailed), meta.FindStatusCondition(w.VM.Status.Conditions, v1alpha1.ConditionRootDiskReady).Reason)
				if !w.VM.Spec.IgnoreOnDeploy {
					w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonRootDiskFailed, "delete DataVolume vm-root to have another cloned")
				}
			}
			w.VM.Spec.IgnoreOnDeploy = false
			w.DataVolume.Status.Phase = cdiv1.Succeeded // the claim comes back
			w.reconcile()
			assert.True(t, w.hasCondition(v1alpha1.ConditionRootDiskReady))
			w.DataVolume.Status.Phase = cdiv1.Failed
			w.reconcile()
			markDeleted(w.DataVolume) // a person gives it up
			w.reconcile()
			w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk, "then the root disk is cloned again")
			w.DataVolume, w.Claim, w.Image, w.sourceExists = nil, nil, goldenImage(1), true
			w.VM.Spec.VMDiskImageRef.Name = "golden"
			w.refreshPinned()
			require.NotEmpty(t, w.reconcile().CreateDisks)
			w.DataVolume.Status.Phase = cdiv1.Failed // a failed clone is retried
			w.Now = w.Now.Add(time.Hour)
			require.NotEmpty(t, w.reconcile().DeleteDisks)
		})
	}
}

// Only the status may know that a disk was cloned.
func TestLostRootDiskStaysInStatus(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Failed)
	w.Now = w.Now.Add(time.Hour)
	w.VM.Status.RootDisk = &v1alpha1.DiskVolume{DataVolume: "vm-root", Ready: true}
	w.Claim = rootDiskClaim(w.DataVolume, corev1.ClaimBound)
	labelAsFormer(w.Claim)
	w.reconcile()
	w.Claim = nil
	require.Empty(t, w.reconcile().DeleteDisks)
	w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonRootDiskFailed)
}
