package image_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// diskTimeoutMessage is CDI's, of cmd/cdi-importer/importer.go.
const diskTimeoutMessage = "Timeout waiting for file /shared/ready"

// runningSince, endedAt and waitingFor are states as kubelets write them.
func runningSince(at time.Time) corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(at)}}
}

func endedAt(started, finished time.Time, exitCode int32, message string) corev1.ContainerState {
	reason := "Error"
	if exitCode == 0 {
		reason = "Completed"
	}
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: exitCode, Reason: reason, Message: message, StartedAt: metav1.NewTime(started), FinishedAt: metav1.NewTime(finished)}}
}

func waitingFor(reason string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
}

// nodePull is an import with pullMethod node, played as a kubelet of Kubernetes 1.36 and CDI 1.65
// do: the kubelet starts containers one after the other, and writes a status only between rounds.
type nodePull struct {
	*simulation
	pod *corev1.Pod
}

func newNodePull(t *testing.T) *nodePull {
	w := newQueuedSimulation(t, apitest.Image("ns/a").WithSource(v1alpha1.SourceRegistry, "docker://r.example.com/disks/a:1").WithPullMethod(v1alpha1.PullNode), policyWithoutPreflight())
	w.stepLedger()
	w.createMissingDataVolumes()
	dv := w.lastDataVolume()
	dv.Status.Phase, dv.Status.Progress = cdiv1.ImportScheduled, "N/A"
	pod := apitest.Pod("ns/importer-prime-1").Phase(corev1.PodPending).Obj()
	pod.Labels, pod.Spec.RestartPolicy = dv.Labels, corev1.RestartPolicyOnFailure
	w.lists.Pods = append(w.lists.Pods, *pod)
	w.reconcile()
	return &nodePull{simulation: w, pod: &w.lists.Pods[0]}
}

// write writes the Pod's status, and CDI's condition of it.
func (p *nodePull) write(phase corev1.PodPhase, init, importer, server corev1.ContainerStatus, reason, message string) {
	init.Name, importer.Name, server.Name = "init", "importer", "server"
	p.pod.Status.Phase = phase
	p.pod.Status.InitContainerStatuses = []corev1.ContainerStatus{init}
	p.pod.Status.ContainerStatuses = []corev1.ContainerStatus{importer, server}
	initialized := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionFalse, Reason: "ContainersNotInitialized"}
	if init.State.Terminated != nil {
		initialized = corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	}
	p.pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, initialized}
	dv, running := p.lastDataVolume(), corev1.ConditionFalse
	if reason == "Pod is running" {
		running = corev1.ConditionTrue
	}
	dv.Status.Conditions = []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeRunning, Status: running, Reason: reason, Message: message}}
	dv.Status.RestartCount = max(dv.Status.RestartCount, importer.RestartCount)
	if phase == corev1.PodRunning {
		dv.Status.Phase = cdiv1.ImportInProgress
	}
	p.reconcile()
}

// CDI waits 60 s for a pull, however long it takes: the attempt goes on with the importer's restart.
func TestPullByNodeTakesItsTime(t *testing.T) {
	for name, pull := range map[string]time.Duration{"20 s": 20 * time.Second, "90 s": 90 * time.Second, "beyond stallTimeout": 40 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			p := newNodePull(t)
			initializing := corev1.ContainerStatus{State: waitingFor("PodInitializing")}
			p.write(corev1.PodPending, corev1.ContainerStatus{State: runningSince(p.now)}, initializing, initializing, "PodInitializing", "")
			init := corev1.ContainerStatus{State: endedAt(p.now, p.now.Add(time.Second), 0, "")}
			p.advanceClock(2 * time.Second)
			p.write(corev1.PodPending, init, initializing, initializing, "PodInitializing", "")
			began := p.now
			for p.now.Before(began.Add(pull)) {
				p.advanceClock(10 * time.Second)
				p.reconcile()
			}
			server := corev1.ContainerStatus{State: runningSince(p.now)}
			importer := corev1.ContainerStatus{State: runningSince(began)}
			if pull > time.Minute {
				importer.State = endedAt(began, began.Add(time.Minute), 1, diskTimeoutMessage)
				p.write(corev1.PodRunning, init, importer, server, "Error", diskTimeoutMessage)
				importer.LastTerminationState, importer.State, importer.RestartCount = importer.State, runningSince(p.now.Add(time.Second)), 1
				p.advanceClock(2 * time.Second)
			}
			p.write(corev1.PodRunning, init, importer, server, "Pod is running", "")
			require.Equal(t, v1alpha1.ReasonImporting, p.status().Reason)
			assert.Equal(t, "importing, attempt 1 of 3", p.status().Message)

			// CDI has deleted the Pod before its DataVolume is Succeeded.
			p.lists.Pods = nil
			p.lastDataVolume().Status.Conditions[0] = cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeRunning, Status: corev1.ConditionFalse, Reason: "Completed", Message: "Import Complete"}
			p.reconcile()
			p.completeImport()
			p.reconcile()
			assert.Equal(t, v1alpha1.PhaseSucceeded, p.status().Phase)
			assert.EqualValues(t, 1, p.status().LastAttempt)
		})
	}
}

func TestDetectFailureAfterDiskTimeout(t *testing.T) {
	at := func(seconds int) time.Time { return apitest.Epoch.Add(time.Duration(seconds) * time.Second) }
	ended := endedAt(at(2), at(62), 1, diskTimeoutMessage)
	node := func(b *apitest.DataVolumeBuilder) *cdiv1.DataVolume {
		dv := b.Obj()
		dv.Spec.Source = &cdiv1.DataVolumeSource{Registry: &cdiv1.DataVolumeSourceRegistry{URL: ptr.To("docker://r.example.com/a"), PullMethod: ptr.To(cdiv1.RegistryPullNode)}}
		return dv
	}
	for name, tt := range map[string]struct {
		importer, server corev1.ContainerStatus
		policy           corev1.RestartPolicy
		byCDI            *cdiv1.DataVolume
		noPod            bool
		wantMessage      string // empty: not failed
	}{
		"the kubelet still pulls":        {importer: corev1.ContainerStatus{State: ended}, server: corev1.ContainerStatus{State: waitingFor("PodInitializing")}},
		"it has pulled":                  {importer: corev1.ContainerStatus{State: ended}, server: corev1.ContainerStatus{State: runningSince(at(92))}},
		"the importer has restarted":     {importer: corev1.ContainerStatus{State: runningSince(at(93)), LastTerminationState: ended, RestartCount: 1}, server: corev1.ContainerStatus{State: runningSince(at(92))}, byCDI: node(importingDataVolume("Pod is running", "").Restarts(1))},
		"no Pod is seen":                 {noPod: true, byCDI: node(importingDataVolume("Error", diskTimeoutMessage).Restarts(1))},
		"a Pod of an earlier agent":      {importer: corev1.ContainerStatus{State: ended}, server: corev1.ContainerStatus{State: runningSince(at(92))}, policy: corev1.RestartPolicyNever, wantMessage: "did not serve its disk within the 60 s that CDI waits"},
		"nothing serves the disk":        {importer: corev1.ContainerStatus{State: waitingFor("CrashLoopBackOff"), LastTerminationState: endedAt(at(93), at(153), 1, diskTimeoutMessage), RestartCount: 1}, server: corev1.ContainerStatus{State: runningSince(at(92))}, wantMessage: "did not serve its disk within the 60 s that CDI waits"},
		"the pull has failed":            {importer: corev1.ContainerStatus{State: ended}, server: corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "unexpected EOF"}}}, wantMessage: "the node cannot pull the image (ErrImagePull): unexpected EOF"},
		"the disk's container has ended": {importer: corev1.ContainerStatus{State: ended}, server: corev1.ContainerStatus{State: endedAt(at(92), at(93), 1, "no disk in /disk")}, wantMessage: "no disk in /disk"},
		"the import has failed after it": {importer: corev1.ContainerStatus{State: endedAt(at(93), at(99), 1, "Unable to process data: qemu-img failed"), LastTerminationState: ended, RestartCount: 1}, server: corev1.ContainerStatus{State: runningSince(at(92))}, byCDI: node(importingDataVolume("Error", "Unable to process data: qemu-img failed").Restarts(1)), wantMessage: "qemu-img failed"},
		"the same, and no Pod is seen":   {noPod: true, byCDI: node(importingDataVolume("Error", "Unable to process data: qemu-img failed").Restarts(1)), wantMessage: "qemu-img failed"},
		"a restart of a download":        {noPod: true, byCDI: importingDataVolume("Pod is running", "").Restarts(1).Obj(), wantMessage: "gave no reason"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := &image.AttemptObjects{DataVolume: tt.byCDI}
			if !tt.noPod {
				pod := apitest.Pod("ns/importer-prime-1").Phase(corev1.PodRunning).Obj()
				pod.Spec.RestartPolicy = tt.policy
				tt.importer.Name, tt.server.Name = "importer", "server"
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{tt.importer, tt.server}
				objects.Pods = []corev1.Pod{*pod}
			}
			got, failed := image.DetectFailure(objects)
			assert.Equal(t, tt.wantMessage != "", failed, got.Message)
			assert.Contains(t, got.Message, tt.wantMessage)
		})
	}
}
