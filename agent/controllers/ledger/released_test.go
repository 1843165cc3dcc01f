package ledger

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// releaseImage deletes an image that keeps another controller's finalizer alone.
func (m *fleetMember) releaseImage(name string) {
	img := &v1alpha1.VMDiskImage{}
	require.NoError(m.t, m.Client.Get(m.t.Context(), types.NamespacedName{Namespace: "ns", Name: name}, img))
	img.Finalizers = []string{"example.com/hold"}
	require.NoError(m.t, m.Client.Update(m.t.Context(), img))
	require.NoError(m.t, m.Client.Delete(m.t.Context(), img))
}

func (m *fleetMember) dataVolumeExists(name string) bool {
	err := m.Client.Get(m.t.Context(), types.NamespacedName{Namespace: "ns", Name: name}, &cdiv1.DataVolume{})
	if !apierrors.IsNotFound(err) {
		require.NoError(m.t, err)
	}
	return err == nil
}

// TestReleasedImageKeepsNoSlot: no agent reconciles an image that is being deleted without the agent's
// finalizer, so no outcome ends its slot. An author could hold every slot of a cluster so, unseen.
func TestReleasedImageKeepsNoSlot(t *testing.T) {
	for name, prepare := range map[string]func(*fleetMember){
		"its import runs": func(*fleetMember) {},
		"its DataVolume is not created yet": func(m *fleetMember) {
			m.deleteDataVolumeOfSlot()
			clear(m.createdAt)
		},
		"its slot is lost": func(m *fleetMember) {
			syncLedger, err := m.readLedger(m.t.Context())
			require.NoError(t, err)
			syncLedger.Status.Slots = nil
			require.NoError(t, m.Client.Status().Update(m.t.Context(), syncLedger))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newFleetMember(t, 1, queuedImages(2)...)
			m.mustReconcile()
			require.Equal(t, []string{"img-0"}, m.namesWithSlots())
			released := m.storedStatus().Slots[0].DataVolume
			m.takeFromQueue()
			m.releaseImage("img-0")
			prepare(m)
			m.lastLedger.Store(nil)
			m.mustReconcile()
			assert.False(t, m.dataVolumeExists(released))
			m.mustReconcile()
			assert.Equal(t, []string{"img-1"}, m.namesWithSlots())
		})
	}
}
