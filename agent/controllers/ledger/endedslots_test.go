package ledger

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// slotOfGoneImage is the slot of an attempt that has ended, whose image is gone.
func slotOfGoneImage() v1alpha1.Slot {
	key := v1alpha1.ImageKey{Namespace: "ns", Name: "gone", UID: "gone"}
	return v1alpha1.Slot{Image: key, Revision: "r", Attempt: 1, DataVolume: ledger.DataVolumeName(key, 1), StartedAt: metav1.Now(), Ended: true}
}

// TestClaimsOfCDIAreReadLessOften: a finalizer may keep a claim for good, and an author may label one of
// another controller. The ledger was reconciled every 15 ms meanwhile.
func TestClaimsOfCDIAreReadLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, slot := newFleetMember(t, 1), slotOfGoneImage()
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "prime-1", Labels: image.AttemptLabels(slot.Image, slot.Revision, slot.Attempt),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "PersistentVolumeClaim", Name: "x", UID: "x", Controller: ptr.To(true)}},
		}}
		require.NoError(t, m.Create(t.Context(), claim))
		read := func() gatheredFacts {
			found := gatheredFacts{images: map[types.UID]*v1alpha1.VMDiskImage{}, facts: map[string]ledger.SlotFacts{}, strays: map[types.UID]bool{}}
			require.NoError(t, m.readSlotsLive(t.Context(), []v1alpha1.Slot{slot}, &found))
			return found
		}
		assert.Equal(t, admissionRetryDelay, read().requeueAfter, "most of them end at once")
		reads := 0
		for began := time.Now(); time.Since(began) < 10*time.Minute; reads++ {
			found := read()
			require.False(t, found.facts[ledger.DataVolumeKey(slot)].CanFreeSlot())
			require.NoError(t, trigger.Sleep(t.Context(), found.requeueAfter))
		}
		assert.Less(t, reads, 150)
		assert.Equal(t, maxClaimRetryDelay, read().requeueAfter)

		require.NoError(t, m.Delete(t.Context(), claim))
		found := read()
		assert.True(t, found.facts[ledger.DataVolumeKey(slot)].CanFreeSlot())
		assert.Zero(t, found.requeueAfter)
		assert.Empty(t, m.claimsSince)
	})
}

// TestSlotIsFreedWithoutCDI: its slot kept the finalizer of an image once the CRDs of CDI were removed.
func TestSlotIsFreedWithoutCDI(t *testing.T) {
	m, slot := newFleetMember(t, 1), slotOfGoneImage()
	m.Kinds = apidiscovery.NewKindTracker(meta.NewDefaultRESTMapper(nil))
	require.NoError(t, m.Kinds.Start(t.Context()))
	c := interceptor.NewClient(m.Client.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if _, ok := list.(*cdiv1.DataVolumeList); ok {
				return apierrors.NewNotFound(cdiv1.Resource("datavolumes"), "")
			}
			return c.List(ctx, list, options...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			_, ok := o.(*cdiv1.DataVolume)
			require.False(t, ok, "a kind that was never served has no informer")
			return c.Get(ctx, key, o, options...)
		},
	})
	m.Client, m.Live = c, c
	syncLedger := &v1alpha1.SyncLedger{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.LedgerName}}
	require.NoError(t, c.Create(t.Context(), syncLedger))
	syncLedger.Status = &v1alpha1.SyncLedgerStatus{Budget: 1, Slots: []v1alpha1.Slot{slot}}
	require.NoError(t, c.Status().Update(t.Context(), syncLedger))
	_, err := m.Reconcile(t.Context(), ctrl.Request{})
	require.NoError(t, err)
	assert.Empty(t, m.storedStatus().Slots)
}
