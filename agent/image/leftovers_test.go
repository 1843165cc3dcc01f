package image_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Storage that does not go, as a claim that somebody's Pod uses, is named.
func TestDeletingImageSaysWhatIsLeft(t *testing.T) {
	w := newTornDownSimulation(t)
	assert.NotContains(t, w.status().Message, "still there")
	w.now = w.now.Add(2 * time.Minute)
	w.reconcile()
	assert.Contains(t, w.status().Message, "its storage is being deleted; still there: DataVolume ")
	assert.Contains(t, w.status().Message, "PersistentVolumeClaim ")
	w.removeDeletedObjects()
	w.reconcile()
	assert.Nil(t, w.img)
}

// TestDeletingImageSaysThatASlotKeepsIt: what keeps the slot may have lost the labels of the image.
func TestDeletingImageSaysThatASlotKeepsIt(t *testing.T) {
	w := newTornDownSimulation(t)
	w.slots = []v1alpha1.Slot{{Image: image.KeyOf(w.img), Revision: "r", Attempt: 1, DataVolume: "a-1", Ended: true}}
	w.removeDeletedObjects()
	w.now = w.now.Add(2 * time.Minute)
	w.reconcile()
	require.NotNil(t, w.img)
	assert.Contains(t, w.status().Message, "its storage is being deleted; still there: the slot of DataVolume a-1")
	w.slots = nil
	w.reconcile()
	assert.Nil(t, w.img)
}

// The node of an importer may be gone, and its Pod with it never: nobody else gets the slot.
func TestObjectsOfFailedAttemptHoldTheSlot(t *testing.T) {
	for name, message := range map[string]string{"is retried": "unexpected EOF", "failed for good": notFoundMessage} {
		t.Run(name, func(t *testing.T) {
			w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
			w.startImport()
			w.failImport(message)
			w.reconcile()
			w.stepLedgerTwice()
			w.reconcile()
			require.Len(t, w.slots, 1)
			assert.NotContains(t, w.status().Message, "keeps a slot", "they may take a while")
			assert.LessOrEqual(t, w.lastDecision.RequeueAfter, time.Minute)

			w.advanceClock(2 * time.Minute)
			w.reconcile()
			assert.Contains(t, w.status().Message, "; attempt 1 keeps a slot until its objects are gone; still there: DataVolume ")
			assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionStalled).Status)

			w.finishDeletions()
			assert.NotContains(t, w.status().Message, "keeps a slot")
		})
	}
	t.Run("while another revision serves", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a").WithURL(urlA), policyWithoutPreflight())
		w.runImport()
		w.setURL(urlB)
		w.reconcile()
		w.startImport()
		w.failImport(notFoundMessage)
		w.reconcile()
		w.stepLedgerTwice()
		w.setURL(urlA)
		w.advanceClock(2 * time.Minute)
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
		assert.Contains(t, w.status().Message, "attempt 2 keeps a slot")
		assert.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionStalled).Status)
	})
}
