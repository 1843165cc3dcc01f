package image_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A container that a webhook has added to an importer Pod restarts without the import. Kubelets
// sort containers by name, and CDI 1.65 reports what the first does (pkg/controller/util.go,
// setAnnotationsFromPodWithPrefix).
func TestAddedContainersAreNotTheImporter(t *testing.T) {
	exited := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "envoy: connection refused"}}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	backsOff := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s restarting failed container"}}
	importer := corev1.ContainerStatus{Name: "importer", State: running}
	failed := corev1.ContainerStatus{Name: "importer", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "Unable to process data: unexpected EOF"}}}
	for name, tt := range map[string]struct {
		statuses    []corev1.ContainerStatus
		phase       corev1.PodPhase // Running
		dv          *apitest.DataVolumeBuilder
		wantMessage string // empty: not failed
	}{
		"it has restarted":               {statuses: []corev1.ContainerStatus{importer, {Name: "istio-proxy", State: running, LastTerminationState: exited, RestartCount: 1}}},
		"it has ended":                   {statuses: []corev1.ContainerStatus{importer, {Name: "vault-agent", State: exited}}},
		"it is the first":                {statuses: []corev1.ContainerStatus{{Name: "envoy", State: running, LastTerminationState: exited, RestartCount: 1}, importer}, dv: importingDataVolume("Pod is running", "").Restarts(1)},
		"it is the first, and has ended": {statuses: []corev1.ContainerStatus{{Name: "envoy", State: exited}, importer}, dv: importingDataVolume("Error", "envoy: connection refused")},
		"it is the first, and waits":     {statuses: []corev1.ContainerStatus{{Name: "envoy", State: backsOff, LastTerminationState: exited, RestartCount: 2}, importer}, dv: importingDataVolume("Error", "envoy: connection refused").Restarts(2)},
		"the importer has failed":        {statuses: []corev1.ContainerStatus{{Name: "envoy", State: running}, failed}, wantMessage: "unexpected EOF"},
		"both, and the Pod":              {statuses: []corev1.ContainerStatus{{Name: "importer", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}, {Name: "istio-proxy", State: exited}}, phase: corev1.PodFailed, wantMessage: "importer Pod failed: container istio-proxy ended with exit code 1 (Error)"},
		"CDI gives up":                   {statuses: []corev1.ContainerStatus{{Name: "envoy", State: running}, importer}, dv: importingDataVolume("Error", "no such source").Phase(cdiv1.Failed), wantMessage: "no such source"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := apitest.Pod("ns/importer-dv").Phase(corev1.PodRunning).Obj()
			if tt.phase != "" {
				pod.Status.Phase = tt.phase
			}
			pod.Status.ContainerStatuses = tt.statuses
			dv := tt.dv
			if dv == nil {
				dv = apitest.DataVolume("ns/dv").Phase(cdiv1.ImportInProgress)
			}
			got, isFailed := image.DetectFailure(&image.AttemptObjects{DataVolume: dv.Obj(), Pods: []corev1.Pod{*pod}})
			assert.Equal(t, tt.wantMessage != "", isFailed)
			assert.Contains(t, got.Message, tt.wantMessage)
			if isFailed {
				assert.Equal(t, v1alpha1.ReasonImportFailed, got.Reason)
			}
		})
	}
}
