package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A root disk may have another source than the pin: after a restore, or with a changed annotation.
func TestRootDiskOfOtherImageIsKept(t *testing.T) {
	newWorldClonedFrom := func(source string) *world {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(2), cdiv1.Succeeded)
		w.Image.Status.Revisions = []v1alpha1.RevisionStatus{olderRevision(1)}
		w.DataVolume.Annotations[v1alpha1.AnnotationClonedFrom] = source
		return w
	}
	t.Run("source that the image has is pinned", func(t *testing.T) {
		w := newWorldClonedFrom(kubevirt.ClonedFromValue(pinServedBy(goldenImage(1), true)))
		w.reconcile()
		assert.EqualValues(t, 1, w.VM.Status.Pinned.Attempt)
		assert.NotNil(t, w.VM.Status.Pinned.AcquiredAt)
		assert.Equal(t, "the root disk is of VMDiskImage ns/golden, revision rev-1", w.conditionMessage(v1alpha1.ConditionImageAcquired))
		assert.False(t, w.hasCondition(v1alpha1.ConditionSpecAdjusted))
	})
	t.Run("source that the image does not have is reported", func(t *testing.T) {
		w := newWorldClonedFrom("uid/rev-7/7/payroll")
		w.reconcile()
		assert.EqualValues(t, 2, w.VM.Status.Pinned.Attempt, "the pin stays")
		assert.NotContains(t, w.conditionMessage(v1alpha1.ConditionImageAcquired), "the root disk is of VMDiskImage")
		assert.True(t, w.hasCondition(v1alpha1.ConditionSpecAdjusted))
		assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), `is "uid/rev-7/7/payroll", which VMDiskImage`)
	})
}

// acquiredAt was removed from the status, and the image serves another revision.
func TestRootDiskSourceIsAcquired(t *testing.T) {
	for name, setup := range map[string]func(*world){
		"with a DataVolume": func(*world) {},
		"claim alone": func(w *world) {
			w.Claim = rootDiskClaim(w.DataVolume, corev1.ClaimBound)
			w.DataVolume, w.Claim.OwnerReferences = nil, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded)
			setup(w)
			w.Image = goldenImage(2)
			w.VM.Status.Pinned.AcquiredAt = nil
			w.reconcile()
			assert.EqualValues(t, 1, w.VM.Status.Pinned.Attempt)
			require.NotNil(t, w.VM.Status.Pinned.AcquiredAt)
			assert.True(t, w.hasCondition(v1alpha1.ConditionImageAcquired))
		})
	}
}

// Otherwise, after a namespace of images is deleted on purpose, every cluster would download them
// again.
func TestNoImageCreatedForMachineWithDisk(t *testing.T) {
	b := apitest.VirtualMachine("ns", "vm").WithTemplate(apitest.Image("ns/golden").Obj().Spec)
	w := newWorld(t, b).withRootDisk(goldenImage(1), cdiv1.Succeeded).withRunningVM()
	w.Image, w.Pinned = nil, nil
	w.reconcile()
	assert.Nil(t, w.lastDecision.CreateImage)
	w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
	assert.Contains(t, w.conditionMessage(v1alpha1.ConditionImageAcquired), "that image no longer exists")

	w.VM.Status.Pinned = nil
	w.DataVolume.Annotations = nil
	w.reconcile()
	assert.Nil(t, w.lastDecision.CreateImage)
	assert.False(t, w.hasCondition(v1alpha1.ConditionImageAcquired))
	assert.Contains(t, w.conditionMessage(v1alpha1.ConditionImageAcquired), "VMDiskImage ns/golden does not exist; the machine has its root disk")

	w.DataVolume, w.Claim = nil, nil
	w.reconcile()
	require.NotNil(t, w.lastDecision.CreateImage, "without a disk it needs the image")
}
