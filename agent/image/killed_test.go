package image_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// An importer that is killed has written no message. A kubelet puts the end of its log there
// (kuberuntime_container.go of Kubernetes 1.36), cut at 2048 bytes, and CDI copies it. The log has errors that ended nothing, as of a refused HEAD.
func TestKilledImporterSaysWhoKilledIt(t *testing.T) {
	const log = "42.10\nE1130 08:00:01.000000       1 http-datasource.go:480] http: expected status code 200, got 403\nI1130 08:00:02.000000       1 prometheus.go:78] 42.11\n"
	condition := func(reason, message string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, Message: message}}
		}
	}
	status := func(reason, message string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			condition("TerminationByKubelet", message)(pod)
			pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, reason, message
		}
	}
	for name, tt := range map[string]struct {
		exitCode     int32
		reason, text string // log where text is empty
		change       func(*corev1.Pod)
		dvReason     string          // as CDI copies it
		wantReason   v1alpha1.Reason // ImportFailed
		wantMessage  string
		wantByCDI    string // where only the DataVolume is left
	}{
		"out of memory": {exitCode: 137, reason: "OOMKilled", dvReason: "OOMKilled",
			wantMessage: "importer ran out of memory (OOMKilled): raise podResourceRequirements", wantByCDI: "importer ran out of memory (OOMKilled): raise podResourceRequirements"},
		"evicted": {exitCode: 137, reason: "Error", dvReason: "Error",
			change:      status("Evicted", "The node was low on resource: memory. Threshold quantity: 100Mi, available: 82208Ki. Container importer was using 600Mi, request is 60M, has larger consumption of memory. "),
			wantMessage: "the importer was ended by Kubernetes (Evicted): The node was low on resource: memory. Threshold"},
		"the node is shut down": {exitCode: 137, reason: "Error", dvReason: "Error", change: status("Terminated", "Pod was terminated in response to imminent node shutdown."),
			wantMessage: "the importer was ended by Kubernetes (Terminated): Pod was terminated in response to imminent node shutdown."},
		"preempted by the kubelet": {exitCode: 137, reason: "Error", dvReason: "Error", change: status("Preempting", "Preempted in order to admit critical pod"),
			wantMessage: "the importer was ended by Kubernetes (Preempting): Preempted in order to admit critical pod"},
		"preempted by the scheduler": {exitCode: 143, reason: "Error", dvReason: "Error", change: condition("PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"),
			wantMessage: "the importer was ended by Kubernetes (PreemptionByScheduler): default-scheduler: preempting"},
		"drained": {exitCode: 143, reason: "Error", dvReason: "Error", change: condition("EvictionByEvictionAPI", "Eviction API: evicting"),
			wantMessage: "the importer was ended by Kubernetes (EvictionByEvictionAPI): Eviction API: evicting"},
		"its node is gone": {exitCode: 137, reason: "Error", dvReason: "Error", change: condition("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"),
			wantMessage: "the importer was ended by Kubernetes (DeletionByTaintManager): Taint manager"},
		"killed by somebody else": {exitCode: 137, reason: "Error", dvReason: "Error",
			wantMessage: "the importer ended without a message, as when its node is drained or fails; its log ends with: 42.10"},
		"a target that was spared": {exitCode: 1, reason: "Error", text: "Unable to process data: unexpected EOF", dvReason: "Error", change: func(pod *corev1.Pod) {
			condition("EvictionByEvictionAPI", "Eviction API: evicting")(pod)
			pod.Status.Conditions[0].Status = corev1.ConditionFalse
		}, wantMessage: "Unable to process data: unexpected EOF", wantByCDI: "Unable to process data: unexpected EOF"},
		"by itself": {exitCode: 1, reason: "Error", text: "Unable to connect to http data source: expected status code 200, got 404. Status: 404 Not Found", dvReason: "Error",
			wantReason: v1alpha1.ReasonNotFound, wantMessage: "got 404", wantByCDI: "got 404"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.text == "" {
				tt.text = log
			}
			if tt.wantReason == "" {
				tt.wantReason = v1alpha1.ReasonImportFailed
			}
			if tt.wantByCDI == "" {
				tt.wantByCDI = "the importer ended without a message, as when its node is drained or fails; its log ends with: "
			}
			pod := apitest.Pod("ns/importer-dv").Phase(corev1.PodRunning).Terminated(tt.exitCode, tt.reason, tt.text).Obj()
			if tt.change != nil {
				tt.change(pod)
			}
			dv := importingDataVolume(tt.dvReason, tt.text).Obj()
			got, failed := image.DetectFailure(&image.AttemptObjects{DataVolume: dv, Pods: []corev1.Pod{*pod}})
			require.True(t, failed)
			assert.Equal(t, tt.wantReason, got.Reason)
			assert.Contains(t, got.Message, tt.wantMessage)

			got, failed = image.DetectFailure(&image.AttemptObjects{DataVolume: dv})
			require.True(t, failed)
			assert.Equal(t, tt.wantReason, got.Reason)
			assert.Contains(t, got.Message, tt.wantByCDI)
		})
	}
}

// A Pod that is to be evicted runs until it ends: what ends it is told then.
func TestDisruptionAloneIsNoFailure(t *testing.T) {
	pod := apitest.Pod("ns/importer-dv").Running().Obj()
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting"}}
	_, failed := image.DetectFailure(&image.AttemptObjects{DataVolume: apitest.DataVolume("ns/dv").Phase(cdiv1.ImportInProgress).Obj(), Pods: []corev1.Pod{*pod}})
	assert.False(t, failed)
}
