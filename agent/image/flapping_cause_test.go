package image_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Property: once a claim that waits for its volume has a cause, the status comes to rest,
// although CDI sets and clears the cause in a loop.
func TestFlappingCauseComesToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newSimulation(t, apitest.Image("ns/a").WithFinalizer(), policyWithoutPreflight().Obj())
		w.reconcile()
		w.stepLedger()
		w.createMissingDataVolumes()
		w.reconcile()
		require.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
		event := rapid.SampledFrom([]string{
			"Waiting for a volume to be created either by the external provisioner 'x'",
			`failed to provision volume with StorageClass "x": rpc error: code = Unavailable desc = down`,
			`failed to provision volume with StorageClass "x": rpc error: code = ResourceExhausted desc = full`,
			`persistentvolumeclaims "prime-1" is forbidden: maximum storage usage is 1Gi`,
			`persistentvolumeclaims "prime-1" is forbidden: exceeded quota: q`,
		}).Draw(t, "event")
		if rapid.Bool().Draw(t, "the importer Pod exists") {
			pod := apitest.Pod("ns/importer").Obj()
			pod.Labels = w.lastDataVolume().Labels
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."}}
			w.lists.Pods = append(w.lists.Pods, *pod)
		}
		say := func(text string) {
			w.lastDataVolume().Status.Conditions = []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeBound, Status: corev1.ConditionFalse, Reason: "Pending", Message: text}}
			w.reconcile()
		}
		w.advanceClock(time.Minute) // longer than a step of every import lasts
		say("target PVC a Pending and [prime-1] : " + event)
		require.NotEqual(t, v1alpha1.ReasonImporting, w.status().Reason)
		stored := asJSON(t, w.status())
		for _, cleared := range rapid.SliceOfN(rapid.Bool(), 1, 6).Draw(t, "cleared") {
			if cleared {
				say("PVC a Pending")
			} else {
				say("target PVC a Pending and [prime-1] : " + event)
			}
			require.Equal(t, stored, asJSON(t, w.status()))
		}
		w.reportProgress("3.0%")
		w.reconcile()
		require.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
	})
}
