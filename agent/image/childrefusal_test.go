package image_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A snapshot that the API server refuses waits, and the image says so: nothing is tried that could stall.
func TestRefusedSnapshotIsShown(t *testing.T) {
	w := newQueuedSimulation(t, imageWithSnapshotClass(), policyWithoutPreflight())
	w.childRefusal = "the API server refuses to create VolumeSnapshot a-1: exceeded quota"
	w.startImport()
	w.completeImport()
	for range 5 {
		require.NotNil(t, w.reconcile().CreateSnapshot)
		assert.Equal(t, v1alpha1.ReasonSnapshotting, w.status().Reason)
		assert.Contains(t, w.status().Message, w.childRefusal)
		assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionStalled).Status)
		w.advanceClock(24 * time.Hour)
	}
	w.childRefusal = ""
	require.NotNil(t, w.reconcile().CreateSnapshot)
	assert.NotContains(t, w.status().Message, "refuses")
	w.markSnapshotReady()
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
}

// What the API server refuses to delete of an image that is torn down is said at once.
func TestRefusedTearDownIsShown(t *testing.T) {
	w := newTornDownSimulation(t)
	w.childRefusal = "the API server refuses to delete DataVolume a-1: a conflict"
	w.reconcile()
	assert.NotContains(t, w.status().Message, "refuses", "its objects are being deleted")
	w.lists.DataVolumes[0].DeletionTimestamp = nil
	require.NotEmpty(t, w.reconcile().Delete)
	assert.Contains(t, w.status().Message, w.childRefusal)
	assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionStalled).Status)
}

// A refusal of what is no longer asked for says nothing.
func TestFormerRefusalIsNotShown(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.childRefusal = "the API server refuses to delete DataVolume a-1: a conflict"
	w.runImport()
	assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	assert.NotContains(t, w.status().Message, "refuses")
}
