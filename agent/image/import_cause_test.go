package image_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// What holds an import up is in the status at once; a step of every import only if it lasts.
func TestCauseOfALowerLayerIsShown(t *testing.T) {
	newImport := func(t *testing.T) *simulation {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.stepLedger()
		w.createMissingDataVolumes()
		w.reconcile()
		require.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
		return w
	}
	say := func(w *simulation, kind cdiv1.DataVolumeConditionType, reason, message string) {
		w.lastDataVolume().Status.Conditions = []cdiv1.DataVolumeCondition{{Type: kind, Status: corev1.ConditionFalse, Reason: reason, Message: message}}
		w.reconcile()
	}
	t.Run("a person has to act", func(t *testing.T) {
		w := newImport(t)
		say(w, cdiv1.DataVolumeRunning, "ErrStartingPod", "Error starting pod 'importer-prime-1'")
		assert.Equal(t, v1alpha1.PhaseSyncing, w.status().Phase)
		assert.Equal(t, v1alpha1.ReasonImporterRefused, w.status().Reason)
		assert.Contains(t, w.status().Message, "importing, attempt 1 of 3: CDI cannot create the importer Pod: Error starting pod 'importer-prime-1'")
		assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionStalled).Status)
		assert.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionReconciling).Status)
		say(w, cdiv1.DataVolumeRunning, "", "")
		assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
		assert.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionStalled).Status)
	})
	t.Run("it may heal", func(t *testing.T) {
		w := newImport(t)
		say(w, cdiv1.DataVolumeRunning, "Unschedulable", "Importer pod cannot be scheduled")
		assert.Equal(t, v1alpha1.ReasonImporterUnschedulable, w.status().Reason)
		assert.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionStalled).Status)
	})
	t.Run("a step of every import", func(t *testing.T) {
		w := newImport(t)
		say(w, cdiv1.DataVolumeBound, "Pending", "target PVC a Pending and [prime-1] : Waiting for a volume to be created either by the external provisioner 'x'")
		require.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
		w.advanceClock(w.lastDecision.RequeueAfter)
		w.reconcile()
		require.Equal(t, v1alpha1.ReasonVolumePending, w.status().Reason)
		// CDI sets and clears the cause in a loop.
		stored := w.img.ResourceVersion
		say(w, cdiv1.DataVolumeBound, "Pending", "PVC a Pending")
		assert.Equal(t, stored, w.img.ResourceVersion, "nothing is written")
		w.reportProgress("3.0%")
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
	})
	t.Run("CDI is refused the claim that it fills", func(t *testing.T) {
		w := newImport(t)
		claim := &w.lists.Claims[0]
		claim.CreationTimestamp, claim.Spec.DataSourceRef = metav1.NewTime(w.now), &corev1.TypedObjectReference{Kind: cdiv1.VolumeImportSourceRef}
		w.reconcile()
		require.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
		require.LessOrEqual(t, w.lastDecision.RequeueAfter, 30*time.Second, "its Events are read then")
		w.advanceClock(30 * time.Second)
		claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: importcause.ConditionClaimEvents, Status: corev1.ConditionTrue, Message: "exceeded quota: q"}}
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonQuotaExceeded, w.status().Reason)
		assert.Contains(t, w.status().Message, "exceeded quota: q")
		assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionStalled).Status)
		assert.LessOrEqual(t, w.lastDecision.RequeueAfter, importcause.EventsInterval, "and again")
	})
	t.Run("at the stall timeout", func(t *testing.T) {
		w := newImport(t)
		say(w, cdiv1.DataVolumeBound, "Pending", "PVC a Pending")
		w.advanceClock(w.policy.StallTimeout)
		w.reconcile()
		assert.Contains(t, w.currentRevision().Failure.Message, "nothing moved for stallTimeout")
		assert.NotContains(t, w.currentRevision().Failure.Message, "not bound")
	})
}

// A slot whose DataVolume cannot be created says why, at once.
func TestCreationProblemIsShown(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	require.Len(t, w.stepLedger().Admitted, 1)
	w.syncCaches()
	v := w.buildView(false)
	v.CreationProblem = func(slot v1alpha1.Slot) *importcause.Cause {
		return &importcause.Cause{Reason: v1alpha1.ReasonDataVolumeRefused, Message: "failed calling webhook for " + slot.DataVolume}
	}
	got := decideChecked(t, v).Status
	assert.Equal(t, v1alpha1.PhaseSyncing, got.Phase)
	assert.Equal(t, v1alpha1.ReasonDataVolumeRefused, got.Reason)
	assert.Contains(t, got.Message, "importing, attempt 1 of 3: failed calling webhook for "+w.slots[0].DataVolume)
}
