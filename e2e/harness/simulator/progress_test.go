//go:build linux

package simulator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestImportProgress(t *testing.T) {
	started := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(started)}}
	for name, test := range map[string]struct {
		url   string
		owner string
		state corev1.ContainerState
		after time.Duration

		want   float64
		wantOK bool
	}{
		"half":                  {"http://source/ok/40s/disk.qcow2", "a", running, 20 * time.Second, 50, true},
		"after a count":         {"http://source/flaky/1/40s/disk.qcow2", "a", running, 10 * time.Second, 25, true},
		"between two steps":     {"http://source/ok/40s/disk.qcow2", "a", running, 19999 * time.Millisecond, 25, true},
		"by a clock behind":     {"http://source/ok/40s/disk.qcow2", "a", running, -11 * time.Second, 0, true},
		"late":                  {"http://source/ok/40s/disk.qcow2", "a", running, time.Minute, 99, true},
		"that hangs":            {"http://source/hang/40s/disk.qcow2", "a", running, time.Minute, 40, true},
		"that hangs unmeasured": {"http://source/hang/disk.qcow2", "a", running, time.Minute, 0, false},
		"without a duration":    {"http://source/images/disk.qcow2", "a", running, time.Second, 0, false},
		"a duration elsewhere":  {"http://source/ok/a/b/40s/disk.qcow2", "a", running, time.Second, 0, false},
		"of nobody":             {"http://source/ok/40s/disk.qcow2", "", running, time.Second, 0, false},
		"of one that has ended": {"http://source/ok/40s/disk.qcow2", "a", corev1.ContainerState{}, time.Second, 0, false},
		"of a blank image":      {"", "a", running, time.Second, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{
				Spec:   corev1.PodSpec{Containers: []corev1.Container{{Env: []corev1.EnvVar{{Name: "OWNER_UID", Value: test.owner}, {Name: "IMPORTER_ENDPOINT", Value: test.url}}}}},
				Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: test.state}}},
			}
			owner, percent, ok := importProgress(pod, started.Add(test.after))
			require.Equal(t, test.wantOK, ok)
			if ok {
				require.Equal(t, test.owner, owner)
				require.InDelta(t, test.want, percent, 0.001)
			}
		})
	}
}
