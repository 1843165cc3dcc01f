package importlogs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
)

var now = time.Date(2026, 3, 2, 16, 21, 0, 0, time.UTC)

func image() *v1alpha1.VMDiskImage {
	return &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: "vmdi-farm", Name: "ubuntu", UID: "1"}}
}

func pod(name, attempt string, minutesAgo int, states ...corev1.ContainerStatus) corev1.Pod {
	for i := range states {
		states[i].Name = "importer"
	}
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{v1alpha1.LabelImageUID: "1", v1alpha1.LabelAttempt: attempt},
			CreationTimestamp: metav1.NewTime(now.Add(-time.Duration(minutesAgo) * time.Minute)),
		},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "server"}, {Name: "importer"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: states},
	}
}

func state(s corev1.ContainerState) corev1.ContainerStatus { return corev1.ContainerStatus{State: s} }

func TestChoose(t *testing.T) {
	running := state(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	ended := state(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}})
	pulling := state(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}})
	restarting := pulling
	restarting.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{}
	unscheduled := pod("p", "1", 1)
	unscheduled.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "insufficient memory"}}
	foreign := pod("foreign", "9", 0, running)
	foreign.Labels[v1alpha1.LabelImageUID] = "2"
	noImporter := pod("uploader", "9", 0, running)
	noImporter.Spec.Containers = []corev1.Container{{Name: "server"}}
	for name, test := range map[string]struct {
		pods        []corev1.Pod
		want        Choice
		wantWaiting string
		wantOK      bool
	}{
		"none":                     {},
		"of others":                {pods: []corev1.Pod{foreign, noImporter}},
		"running":                  {pods: []corev1.Pod{pod("p", "1", 1, running)}, want: Choice{Pod: "p", Container: "importer", Attempt: 1}, wantOK: true},
		"the newest attempt":       {pods: []corev1.Pod{pod("a", "2", 9, running), pod("b", "10", 5, running), pod("c", "9", 1, running)}, want: Choice{Pod: "b", Container: "importer", Attempt: 10}, wantOK: true},
		"the newest of an attempt": {pods: []corev1.Pod{pod("a", "2", 9, running), pod("b", "2", 5, running)}, want: Choice{Pod: "b", Container: "importer", Attempt: 2}, wantOK: true},
		"no label":                 {pods: []corev1.Pod{pod("a", "", 9, running)}, want: Choice{Pod: "a", Container: "importer"}, wantOK: true},
		"ended":                    {pods: []corev1.Pod{pod("p", "1", 1, ended)}, want: Choice{Pod: "p", Container: "importer", Attempt: 1, Ended: true}, wantOK: true},
		"restarting":               {pods: []corev1.Pod{pod("p", "1", 1, restarting)}, want: Choice{Pod: "p", Container: "importer", Attempt: 1, Previous: true}, wantOK: true},
		"its image is not pulled":  {pods: []corev1.Pod{pod("p", "1", 1, pulling)}, want: Choice{Pod: "p", Container: "importer", Attempt: 1}, wantWaiting: "importer Pod p has not begun: ImagePullBackOff, no such image"},
		"no node":                  {pods: []corev1.Pod{unscheduled}, want: Choice{Pod: "p", Container: "importer", Attempt: 1}, wantWaiting: "importer Pod p has not begun: Unschedulable, insufficient memory"},
		"nothing known":            {pods: []corev1.Pod{pod("p", "1", 1)}, want: Choice{Pod: "p", Container: "importer", Attempt: 1}, wantWaiting: "importer Pod p has not begun: Pending"},
	} {
		t.Run(name, func(t *testing.T) {
			got, waiting, ok := Choose(image(), test.pods)
			assert.Equal(t, test.want, got)
			assert.Equal(t, test.wantWaiting, waiting)
			assert.Equal(t, test.wantOK, ok)
		})
	}
}

func TestScreens(t *testing.T) {
	failed := image()
	failed.Status = v1alpha1.VMDiskImageStatus{
		Phase: v1alpha1.PhaseQueued, Reason: "BackingOff", Message: "attempt 3 of 4 begins at 16:31", Attempts: 2,
		Revisions: []v1alpha1.RevisionStatus{
			{Failure: &v1alpha1.Failure{Reason: "ImportFailed", Message: "connection reset\x1b[2J", Time: metav1.NewTime(now.Add(-7 * time.Minute))}},
			{Failure: &v1alpha1.Failure{Reason: "NotFound", Message: "an older one", Time: metav1.NewTime(now.Add(-70 * time.Minute))}},
		},
	}
	rendertest.Golden(t, "failed", now, NewAbsent(now, failed, "importer Pod p has not begun: Pending"))
	rendertest.Golden(t, "new", now, NewAbsent(now, image(), ""))
}
