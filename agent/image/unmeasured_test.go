package image_test

import (
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Progress that CDI does not measure says nothing about an importer that runs; see
// s3-datasource.go, transport.go and import-populator.go of CDI 1.65.
func TestSilenceIsNoStallWhereNothingIsMeasured(t *testing.T) {
	container := func(name string, state corev1.ContainerState) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: name, State: state})
		}
	}
	waiting := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
	for name, tt := range map[string]struct {
		progress    string
		size        int64 // that the source has said
		change      func(*corev1.Pod)
		wantStalled bool
		wantUnread  bool
	}{
		"a download that is not measured":       {progress: "N/A"},
		"no progress yet":                       {progress: ""},
		"a conversion after a measured one":     {progress: "97.30%"},
		"a short download, read seldom":         {progress: "80.00%"},
		"a text that is no number":              {progress: "soon"},
		"in mid-transfer":                       {progress: "79.99%", wantStalled: true},
		"at its begin":                          {progress: "0.00%", wantStalled: true},
		"a download whose progress is not read": {progress: "N/A", size: 4711, wantUnread: true},
		"a conversion of a known size":          {progress: "97.30%", size: 4711},
		"an importer that does not start":       {progress: "N/A", change: func(pod *corev1.Pod) { pod.Status = corev1.PodStatus{Phase: corev1.PodPending} }, wantStalled: true},
		"an importer that is being deleted":     {progress: "N/A", change: func(pod *corev1.Pod) { pod.DeletionTimestamp = ptr.To(metav1.NewTime(apitest.Epoch)) }, wantStalled: true},
		"the kubelet pulls the disk":            {progress: "N/A", change: container("server", waiting("ContainerCreating"))},
		"the kubelet pulls, and writes nothing": {progress: "N/A", change: func(pod *corev1.Pod) {
			container("server", waiting("PodInitializing"))(pod)
			pod.Status.Phase, pod.Status.ContainerStatuses[0].State = corev1.PodPending, waiting("PodInitializing")
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}}
		}},
		"the init container does not end": {progress: "N/A", change: func(pod *corev1.Pod) {
			container("server", waiting("PodInitializing"))(pod)
			pod.Status.Phase, pod.Status.ContainerStatuses[0].State = corev1.PodPending, waiting("PodInitializing")
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionFalse, Reason: "ContainersNotInitialized"}}
		}, wantStalled: true},
		"the disk's container cannot be made": {progress: "N/A", change: container("server", waiting("CreateContainerError")), wantStalled: true},
		"a container of others waits":         {progress: "N/A", change: container("istio-proxy", waiting("CrashLoopBackOff"))},
		"a container of others alone runs": {progress: "N/A", change: func(pod *corev1.Pod) {
			container("vault-agent", pod.Status.ContainerStatuses[0].State)(pod)
			pod.Status.ContainerStatuses[0].State = waiting("ContainerCreating")
		}, wantStalled: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight().Timeouts(time.Hour, 15*time.Minute))
			w.startImport()
			w.status().BytesTotal = tt.size
			w.reportProgress(tt.progress)
			if tt.change != nil {
				tt.change(&w.lists.Pods[0])
			}
			w.advanceClock(time.Minute) // progress is stored after maxProgressAge
			w.reconcile()
			for range 16 {
				w.advanceClock(time.Minute)
				w.reconcile()
			}
			if tt.wantStalled {
				require.NotNil(t, w.currentRevision().Failure)
				assert.Equal(t, v1alpha1.ReasonStalled, w.currentRevision().Failure.Reason)
				return
			}
			require.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
			assert.Equal(t, tt.wantUnread, strings.Contains(w.status().Message, "CDI cannot read its progress"))
			assert.LessOrEqual(t, w.lastDecision.RequeueAfter, 15*time.Minute)

			// Between the end of the importer and that of the DataVolume, too.
			running := w.lists.Pods[0].DeepCopy()
			w.lists.Pods[0] = *apitest.Pod("ns/"+running.Name).Terminated(0, "Completed", "").Obj()
			w.lists.Pods[0].Labels = running.Labels
			w.reconcile()
			require.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)

			w.lists.Pods[0] = *running
			w.advanceClock(time.Hour)
			w.reconcile()
			require.NotNil(t, w.currentRevision().Failure, "an importer that hangs is ended")
			assert.Equal(t, v1alpha1.ReasonTimeout, w.currentRevision().Failure.Reason)
		})
	}
}

// TestUnmeasuredImportSaysTheSameThroughout: what CDI says of its claim is a step of every import, and none
// while the importer runs, also just after progress is stored.
func TestUnmeasuredImportSaysTheSameThroughout(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight().Timeouts(time.Hour, 15*time.Minute))
	w.startImport()
	w.reportProgress("N/A")
	w.lists.DataVolumes[0].Status.Conditions = []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeBound, Status: corev1.ConditionFalse, Reason: "CreatingScratchSpace", Message: "Creating scratch space"}}
	w.reconcile()
	want, stored := w.status().Message, 0
	require.Equal(t, "importing, attempt 1 of 3", want)
	for range 30 * 60 / 5 {
		before := w.currentRevision().ProgressedAt.DeepCopy()
		w.advanceClock(5 * time.Second)
		w.reconcile()
		require.Equal(t, want, w.status().Message)
		require.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
		if !before.Equal(w.currentRevision().ProgressedAt) {
			stored++
		}
	}
	assert.LessOrEqual(t, stored, 6, "once in 5 minutes")
}

// In a namespace with default-deny ingress CDI cannot read the importer's metrics, and an import whose
// progress it would know stays at N/A (updateImportProgress of import-populator.go, CDI 1.65).
func TestUnreadProgressSaysWhatToAllow(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.stepLedger()
	w.createMissingDataVolumes()
	w.reconcile()
	w.status().BytesTotal = 4711
	w.reportProgress("N/A")
	w.lists.Pods[0].Status.ContainerStatuses[0].State.Running.StartedAt = metav1.NewTime(w.now)
	w.reconcile()
	assert.Equal(t, "importing, attempt 1 of 3", w.status().Message)
	require.LessOrEqual(t, w.lastDecision.RequeueAfter, 2*time.Minute)

	w.advanceClock(2 * time.Minute)
	w.reconcile()
	assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
	assert.Equal(t, "importing, attempt 1 of 3: the importer runs, and CDI cannot read its progress; if NetworkPolicies isolate this namespace, allow ingress to port 8443 of importers from CDI's namespace", w.status().Message)
	assert.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionStalled).Status)

	w.reportProgress("3.00%")
	w.reconcile()
	assert.Equal(t, "importing, attempt 1 of 3", w.status().Message)
}

// A driver that has taken a snapshot may be uploading it, also while an error of before is kept.
func TestTakenSnapshotGetsAttemptTimeout(t *testing.T) {
	w := newQueuedSimulation(t, imageWithSnapshotClass(), policyWithoutPreflight().RetryLimit(0).Timeouts(time.Hour, 15*time.Minute))
	w.runImport()
	first := w.lastSnapshot().Name
	w.lastSnapshot().Status = &snapshotv1.VolumeSnapshotStatus{
		ReadyToUse: ptr.To(false), CreationTime: ptr.To(metav1.NewTime(w.now)),
		Error: &snapshotv1.VolumeSnapshotError{Message: ptr.To("rpc error: code = DeadlineExceeded")},
	}
	w.advanceClock(time.Hour - time.Second)
	w.reconcile()
	require.Equal(t, v1alpha1.ReasonSnapshotting, w.status().Reason)
	assert.Equal(t, first, w.currentRevision().VolumeSnapshot)
	w.advanceClock(time.Second)
	w.reconcile()
	assert.Equal(t, v1alpha1.ReasonSnapshotFailed, w.status().Reason)
	assert.Contains(t, w.status().Message, "none of 1 VolumeSnapshots became ready within 1h0m0s: ")
}
