package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestDecideFromNothingToRunning(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithTemplate(apitest.Image("ns/golden").Obj().Spec))
	w.visit()
	w.says(v1alpha1.MachineProvisioning, v1alpha1.ReasonWaitingForImage, "is being created from the template")
	require.NotNil(t, w.last.CreateImage)
	assert.Equal(t, "ns/vm", w.last.CreateImage.Annotations[v1alpha1.AnnotationCreatedFor])

	w.visit()
	w.says(v1alpha1.MachineProvisioning, v1alpha1.ReasonWaitingForImage, "it has just been created")
	w.Image.Status = golden(1).Status
	first := w.decide()
	assert.True(t, first.StoreFirst)
	require.NotNil(t, first.Status.Pinned)
	assert.Nil(t, first.Status.Pinned.AcquiredAt)

	w.visit()
	w.says(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloning)
	assert.True(t, w.has(v1alpha1.ConditionImageAcquired))
	require.NotNil(t, w.RootDisk)
	assert.NotNil(t, w.Machine, "it does not wait for the clone, which may wait for it")
	assert.NotNil(t, w.Secret)

	w.reports("Provisioning", nil).visit()
	w.says(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloning)
	w.RootDisk.Status.Phase = cdiv1.Succeeded
	w.reports("Starting", map[string]any{"created": true}).visit()
	w.says(v1alpha1.MachineProvisioning, v1alpha1.ReasonStarting)
	w.reports("Running", map[string]any{"created": true, "ready": true}).visit()
	w.says(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
	for _, c := range []string{v1alpha1.ConditionImageAcquired, v1alpha1.ConditionRootDiskReady, v1alpha1.ConditionMachineCreated} {
		assert.True(t, w.has(c), c)
	}
	assert.Nil(t, w.last.ApplyMachine, "what KubeVirt adds is no drift")
	assert.Nil(t, w.last.ApplySecret)
	assert.Zero(t, w.last.After)
}
