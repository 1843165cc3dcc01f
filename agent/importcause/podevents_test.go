package importcause_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/agent/importcause"
)

func atSecond(second int64) metav1.Time { return metav1.Unix(second, 0) }

func warning(reason, message string, first, last int64) corev1.Event {
	return corev1.Event{Type: corev1.EventTypeWarning, Reason: reason, Message: message, FirstTimestamp: atSecond(first), LastTimestamp: atSecond(last)}
}

func TestLatestWarning(t *testing.T) {
	events := []corev1.Event{
		warning("FailedMount", "", 5, 5),
		{Type: corev1.EventTypeWarning, Reason: "FailedCreatePodSandBox", Message: "sandbox " + strings.Repeat("0a", 32) + ": " + strings.Repeat("x", 5000), Series: &corev1.EventSeries{LastObservedTime: metav1.MicroTime(atSecond(7))}},
		{Type: corev1.EventTypeWarning, Reason: "FailedAttachVolume", EventTime: metav1.MicroTime(atSecond(6))},
		warning("FailedScheduling", "", 9, 9),
		{Type: corev1.EventTypeNormal, Reason: "SuccessfulAttachVolume", LastTimestamp: atSecond(9)},
	}
	pod := &corev1.Pod{}
	got := importcause.LatestWarning(pod, events, atSecond(9).Time)
	require.NotNil(t, got)
	assert.Equal(t, "FailedCreatePodSandBox", got.Reason)
	assert.True(t, strings.HasPrefix(got.Message, "sandbox …: "), "it is the same at each try")
	assert.Less(t, len(got.Message), 1100)
	assert.Nil(t, importcause.LatestWarning(pod, events[3:], atSecond(9).Time), "the scheduler's is over, and the other is none")
}

// A warning counts until the Pod goes on, or it is no longer repeated.
func TestWarningsEnd(t *testing.T) {
	normal := func(reason string, second int64) corev1.Event {
		return corev1.Event{Type: corev1.EventTypeNormal, Reason: reason, LastTimestamp: atSecond(second)}
	}
	changed := func(condition corev1.PodConditionType, second int64) corev1.PodStatus {
		return corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: condition, LastTransitionTime: atSecond(second)}}}
	}
	initialized := func(second int64) corev1.PodStatus {
		return corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: atSecond(second)}}}}}
	}
	for name, tt := range map[string]struct {
		status corev1.PodStatus
		other  corev1.Event
		age    time.Duration
		want   bool
	}{
		"just reported":                      {want: true},
		"reported once in 5 minutes":         {age: 5 * time.Minute, want: true},
		"no longer repeated":                 {age: 7 * time.Minute},
		"volumes are there, and images not":  {other: normal("Pulling", 101)},
		"an image that was there":            {other: normal("Pulled", 100)},
		"pulled before":                      {other: normal("Pulled", 99), want: true},
		"an event that says nothing of it":   {other: normal("SuccessfulAttachVolume", 101), want: true},
		"a sandbox since":                    {status: changed(corev1.PodReadyToStartContainers, 101)},
		"a sandbox before":                   {status: changed(corev1.PodReadyToStartContainers, 99), want: true},
		"an init container has run since":    {status: initialized(101)},
		"an init container has run before":   {status: initialized(99), want: true},
		"scheduled, by the scheduler's time": {status: changed(corev1.PodScheduled, 101), want: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: tt.status}
			got := importcause.LatestWarning(pod, []corev1.Event{warning("FailedMount", "m", 1, 100), tt.other}, atSecond(100).Add(tt.age))
			assert.Equal(t, tt.want, got != nil)
		})
	}
}

// A person is needed for what the Pod's own spec names, and only where it does not follow soon.
func TestMissingObjects(t *testing.T) {
	projected := func(sources ...corev1.VolumeProjection) corev1.Volume {
		return corev1.Volume{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}}
	}
	secret := func(name string) corev1.Volume {
		return corev1.Volume{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}}
	}
	configMap := func(name string) corev1.VolumeProjection {
		return corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
	}
	const secretText, configMapText = `MountVolume.SetUp failed for volume "v" : secret "a" not found`, `MountVolume.SetUp failed for volume "v" : [secret "b" not found, configmap "a" not found]`
	for name, tt := range map[string]struct {
		volume corev1.Volume
		event  corev1.Event
		want   string
	}{
		"a Secret":                   {secret("a"), warning("FailedMount", secretText, 0, 60), importcause.ReasonSecretNotFound},
		"that may follow":            {secret("a"), warning("FailedMount", secretText, 0, 59), "FailedMount"},
		"of a series":                {secret("a"), corev1.Event{Type: corev1.EventTypeWarning, Reason: "FailedMount", Message: secretText, EventTime: metav1.MicroTime(atSecond(1)), Series: &corev1.EventSeries{LastObservedTime: metav1.MicroTime(atSecond(90))}}, importcause.ReasonSecretNotFound},
		"of another name":            {secret("b"), warning("FailedMount", secretText, 0, 60), "FailedMount"},
		"of another kind":            {projected(configMap("a")), warning("FailedMount", secretText, 0, 60), "FailedMount"},
		"another event":              {secret("a"), warning("FailedCreatePodSandBox", secretText, 0, 60), "FailedCreatePodSandBox"},
		"a ConfigMap of several":     {projected(configMap("a")), warning("FailedMount", configMapText, 0, 60), importcause.ReasonConfigMapNotFound},
		"of the account":             {projected(corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}, configMap("a")), warning("FailedMount", configMapText, 0, 60), "FailedMount"},
		"certificates of the server": {projected(configMap("kube-root-ca.crt")), warning("FailedMount", `configmap "kube-root-ca.crt" not found`, 0, 60), "FailedMount"},
		"a CSI driver":               {secret("a"), warning("FailedMount", "driver name a not found in the list of registered CSI drivers", 0, 60), "FailedMount"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{tt.volume}}}
			got := importcause.LatestWarning(pod, []corev1.Event{tt.event}, atSecond(100).Time)
			require.NotNil(t, got)
			assert.Equal(t, tt.want, got.Reason)
			assert.Equal(t, tt.event.Message, got.Message)
		})
	}
}
