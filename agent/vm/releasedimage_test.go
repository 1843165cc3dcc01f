package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// releaseImage makes an image one that is being deleted without the agent's finalizer.
func releaseImage(img *v1alpha1.VMDiskImage) {
	markDeleted(img)
	img.Finalizers = []string{"example.com/hold"}
}

// No machine acquires a released image, whatever its status says: nothing keeps it for the machine.
func TestReleasedImageIsNotAcquired(t *testing.T) {
	for name, pinned := range map[string]bool{"not pinned": false, "pinned before": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm"))
			img := goldenImage(1)
			if w.Image = img; pinned {
				w.withPin(img, false)
			}
			releaseImage(img)
			w.reconcile()
			w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonImageDeleting, "VMDiskImage ns/golden is being deleted")
			assert.Nil(t, w.VM.Status.Pinned)
			assert.Empty(t, w.lastDecision.CreateDisks)
		})
	}
}

// The storage of a pin that was acquired before stays: the agent deletes none of a released image.
func TestAcquiredPinOfReleasedImageStays(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withPin(goldenImage(1), true)
	releaseImage(w.Image)
	d := w.reconcile()
	require.NotNil(t, w.VM.Status.Pinned)
	assert.NotNil(t, w.VM.Status.Pinned.AcquiredAt)
	assert.Len(t, d.CreateDisks, 1)
}
