package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/machine"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestDecideOnADiskOfSomethingElse than what is pinned: a restored one, or one
// whose annotation somebody has changed.
func TestDecideOnADiskOfSomethingElse(t *testing.T) {
	of := func(says string) *world {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).cloned(golden(2), cdiv1.Succeeded)
		w.Image.Status.Revisions = []v1alpha1.RevisionStatus{older(1)}
		w.RootDisk.Annotations[v1alpha1.AnnotationClonedFrom] = says
		return w
	}
	t.Run("that the image has: it is pinned", func(t *testing.T) {
		w := of(machine.ClonedFrom(pinOf(golden(1), true)))
		w.visit()
		assert.EqualValues(t, 1, w.VM.Status.Pinned.Attempt)
		assert.NotNil(t, w.VM.Status.Pinned.AcquiredAt)
		assert.Equal(t, "the root disk is of VMDiskImage ns/golden, revision rev-1", w.message(v1alpha1.ConditionImageAcquired))
		assert.False(t, w.has(v1alpha1.ConditionSpecAdjusted))
	})
	t.Run("that the image does not have: it is told", func(t *testing.T) {
		w := of("uid/rev-7/7/payroll")
		w.visit()
		assert.EqualValues(t, 2, w.VM.Status.Pinned.Attempt, "nothing that is held is let go of")
		assert.NotContains(t, w.message(v1alpha1.ConditionImageAcquired), "the root disk is of VMDiskImage")
		assert.True(t, w.has(v1alpha1.ConditionSpecAdjusted))
		assert.Contains(t, w.message(v1alpha1.ConditionSpecAdjusted), `cloned from "uid/rev-7/7/payroll"`)
	})
}

// TestDecideAcquiresWhatADiskIsOf: somebody has removed that it was acquired, and
// the image serves another revision by now.
func TestDecideAcquiresWhatADiskIsOf(t *testing.T) {
	for name, given := range map[string]func(*world){
		"with a DataVolume": func(*world) {},
		"a claim by itself": func(w *world) {
			w.RootClaim = claimOf(w.RootDisk, corev1.ClaimBound)
			w.RootDisk, w.RootClaim.OwnerReferences = nil, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm")).cloned(golden(1), cdiv1.Succeeded)
			given(w)
			w.Image = golden(2)
			w.VM.Status.Pinned.AcquiredAt = nil
			w.visit()
			assert.EqualValues(t, 1, w.VM.Status.Pinned.Attempt)
			require.NotNil(t, w.VM.Status.Pinned.AcquiredAt)
			assert.True(t, w.has(v1alpha1.ConditionImageAcquired))
		})
	}
}

// TestDecideMakesNoImageOfAMachineWithADisk: where a namespace of images was
// deleted on purpose, each cluster would download all of them again.
func TestDecideMakesNoImageOfAMachineWithADisk(t *testing.T) {
	b := apitest.VirtualMachine("ns", "vm").WithTemplate(apitest.Image("ns/golden").Obj().Spec)
	w := newWorld(t, b).cloned(golden(1), cdiv1.Succeeded).running()
	w.Image, w.Pinned = nil, nil
	w.visit()
	assert.Nil(t, w.last.CreateImage)
	w.says(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
	assert.Contains(t, w.message(v1alpha1.ConditionImageAcquired), "that image does not exist any more")

	w.VM.Status.Pinned = nil
	w.RootDisk.Annotations = nil
	w.visit()
	assert.Nil(t, w.last.CreateImage)
	assert.False(t, w.has(v1alpha1.ConditionImageAcquired))
	assert.Contains(t, w.message(v1alpha1.ConditionImageAcquired), "VMDiskImage ns/golden does not exist; the machine has its root disk")

	w.RootDisk, w.RootClaim = nil, nil
	w.visit()
	require.NotNil(t, w.last.CreateImage, "without its disk it needs the image")
}
