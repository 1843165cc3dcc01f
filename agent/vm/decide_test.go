package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestMachineGoesFromNothingToRunning(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithTemplate(apitest.Image("ns/golden").Obj().Spec))
	w.reconcile()
	w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonWaitingForImage, "is being created from the template")
	require.NotNil(t, w.lastDecision.CreateImage)
	assert.Equal(t, "ns/vm", w.lastDecision.CreateImage.Annotations[v1alpha1.AnnotationCreatedFor])

	w.reconcile()
	w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonWaitingForImage, "it was just created")
	w.Image.Status = goldenImage(1).Status
	first := w.decide()
	assert.True(t, first.StoreStatusFirst)
	require.NotNil(t, first.Status.Pinned)
	assert.Nil(t, first.Status.Pinned.AcquiredAt)

	w.reconcile()
	w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk)
	assert.True(t, w.hasCondition(v1alpha1.ConditionImageAcquired))
	require.NotNil(t, w.DataVolume)
	assert.NotNil(t, w.KubeVirtVM, "it does not wait for the clone, which may wait for its first consumer")
	assert.NotNil(t, w.cloudInitSecret)

	w.setKubeVirtStatus("Provisioning", nil).reconcile()
	w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk)
	w.DataVolume.Status.Phase = cdiv1.Succeeded
	w.setKubeVirtStatus("Starting", map[string]any{"created": true}).reconcile()
	w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonStarting)
	w.setKubeVirtStatus("Running", map[string]any{"created": true, "ready": true}).reconcile()
	w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
	for _, c := range []string{v1alpha1.ConditionImageAcquired, v1alpha1.ConditionRootDiskReady, v1alpha1.ConditionMachineCreated} {
		assert.True(t, w.hasCondition(c), c)
	}
	assert.Nil(t, w.lastDecision.ApplyKubeVirtVM, "defaults of KubeVirt are no drift")
	assert.Zero(t, w.lastDecision.RequeueAfter)
}

// TestMachineThatCannotBeBuiltGetsNoDisk: it took storage and quota.
func TestMachineThatCannotBeBuiltGetsNoDisk(t *testing.T) {
	machine := func() *apitest.MachineBuilder { return apitest.VirtualMachine("ns", "vm") }
	for name, tt := range map[string]struct {
		machine   *apitest.MachineBuilder
		setup     func(*world)
		wantDisks int
	}{
		"a spec that is right": {machine(), func(*world) {}, 1},
		"an invalid spec":      {machine().WithOverlay(`{"running":true}`), func(*world) {}, 0},
		"a Secret that may not be read": {machine(), func(w *world) {
			w.MissingSecret, w.SecretForbidden = "the agent may not read Secret ns/s", true
		}, 0},
		"a Secret that may follow": {machine(), func(w *world) { w.MissingSecret = "Secret ns/s does not exist" }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tt.machine).withPin(goldenImage(1), true)
			tt.setup(w)
			assert.Len(t, w.decide().CreateDisks, tt.wantDisks)
		})
	}
}
