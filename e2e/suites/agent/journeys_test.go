//go:build linux

package agent

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestImagesSyncInQueueOrder(t *testing.T) {
	env.SetPolicy(t, map[string]string{"concurrency": "3", "retryLimit": "2", "retryBackoffDuration": "1s"})
	ns := env.CreateHomeNamespace(t)
	o := env.StartObserver(t)

	var fine []*v1alpha1.VMDiskImage
	for i := range 8 {
		fine = append(fine, env.NewSnapshottedImage(ns, fmt.Sprintf("image-%d", i), fmt.Sprintf("/ok/1s/%d.qcow2", i)))
		env.Create(t, fine[i])
	}
	heals := env.NewSnapshottedImage(ns, "heals", "/flaky/1/1s/heals.qcow2")
	fails := env.NewImage(ns, "lab-404", "/servererror/lab-404.qcow2")
	gone := env.NewImage(ns, "gone", "/gone/gone.qcow2")
	env.Create(t, heals, fails, gone)

	for _, img := range append(fine, heals) {
		got := env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
		require.NotNil(t, got.Status.Serving)
		assert.NotEmpty(t, got.Status.Serving.VolumeSnapshot)
		assert.NotNil(t, got.Status.Serving.RestoreSize)
	}
	failed := env.AwaitImage(t, fails, testenv.InPhase(v1alpha1.PhaseFailed))
	assert.Equal(t, v1alpha1.ReasonImportFailed, failed.Status.Reason, "the name of an image is no status code")
	missing := env.AwaitImage(t, gone, testenv.InPhase(v1alpha1.PhaseFailed))
	assert.Equal(t, v1alpha1.ReasonNotFound, missing.Status.Reason)

	h := testenv.History(t, o)
	assert.Empty(t, h.BudgetViolations())
	assert.Equal(t, 3, h.MaxRunning(), "the budget is used")
	assert.Empty(t, h.ReusedNames())
	assert.Equal(t, 3, h.Attempts(fails.UID), "retryLimit + 1")
	assert.Equal(t, 2, h.Attempts(heals.UID))
	assert.Equal(t, 0, h.Attempts(gone.UID), "a missing image costs no slot")
	started := h.StartOrder()
	for i, img := range fine {
		assert.Equal(t, img.UID, started[i], "image %d of the queue", i)
	}
}

// TestQueueOrderSurvivesDowntime wants images that were queued before the agent stopped to
// stay in front. Those created meanwhile follow in the order of their creation, also within
// one second.
func TestQueueOrderSurvivesDowntime(t *testing.T) {
	testenv.RunInTurn(t, 13)
	env.SetPolicy(t, map[string]string{"concurrency": "0"})
	ns := env.CreateHomeNamespace(t)
	o := env.StartObserver(t)
	var want []types.UID
	create := func(prefix string) []*v1alpha1.VMDiskImage {
		var images []*v1alpha1.VMDiskImage
		for i := range 5 {
			// The order of the names is the reverse.
			img := env.NewImage(ns, fmt.Sprintf("%s-%d", prefix, 9-i), "/ok/100ms/disk.qcow2")
			env.Create(t, img)
			images = append(images, img)
			want = append(want, img.UID)
		}
		return images
	}
	queued := create("z-before")
	for _, img := range queued {
		env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonPaused))
	}
	var missed []*v1alpha1.VMDiskImage
	env.WithoutAgent(t, func() { missed = create("a-meanwhile") })
	for _, img := range missed {
		env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonPaused))
	}
	late := create("m-after")
	for _, img := range late {
		env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonPaused))
	}
	env.SetPolicy(t, map[string]string{"concurrency": "2"})
	for _, img := range append(append(queued, missed...), late...) {
		env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
	}
	h := testenv.History(t, o)
	assert.Equal(t, want, h.StartOrder())
	assert.Empty(t, h.BudgetViolations())
}

// runKubectl runs kubectl in a namespace.
func runKubectl(t *testing.T, ns, stdin string, args ...string) (string, error) {
	t.Helper()
	paths, err := binaries.Ensure(t.Context(), binaries.Kubectl)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), paths[binaries.Kubectl], append([]string{"--namespace=" + ns}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+env.ControlPlane.Kubeconfig())
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestPipelinePublishesAndWaits plays a pipeline that applies an image, waits until it is
// ready, and deletes it.
func TestPipelinePublishesAndWaits(t *testing.T) {
	env.SetPolicy(t, map[string]string{"concurrency": "3", "retryLimit": "2", "retryBackoffDuration": "5m"})
	env.CreateStorageClasses(t, "gp3", "ebs-snapshot")
	ns := env.CreateHomeNamespace(t)
	env.Create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "foo-bar"}, StringData: map[string]string{"accessKeyId": "me", "secretKey": "mine"}})

	env.AllowSecrets(t, ns)

	out, err := runKubectl(t, ns, apitest.ProposedImage, "apply", "-f", "-")
	require.NoError(t, err, out)
	out, err = runKubectl(t, ns, "", "wait", "--for=condition=Ready", "--timeout=170s", "vmdi/sync-workspace-123")
	state, stateErr := runKubectl(t, ns, "", "get", "vmdi")
	require.NoError(t, err, "%s\n%s", out, state)
	require.NoError(t, stateErr, state)
	assert.Contains(t, state, "Succeeded")
	assert.Contains(t, state, "cloned from VolumeSnapshot")

	out, err = runKubectl(t, ns, "", "get", "datavolumes,volumesnapshots", "-l", "pelotech.ot/image-uid", "-o", "name")
	require.NoError(t, err, out)
	assert.Len(t, strings.Fields(out), 2)

	out, err = runKubectl(t, ns, "", "delete", "--cascade=foreground", "--timeout=170s", "vmdi/sync-workspace-123")
	require.NoError(t, err, out)
	require.True(t, testenv.AwaitCondition(t, func() bool {
		out, err = runKubectl(t, ns, "", "get", "datavolumes,volumesnapshots,pvc,pods", "-o", "name")
		require.NoError(t, err, out)
		return strings.TrimSpace(out) == ""
	}), "%s", out)
}

func TestWaitingReasonIsShownByKubectl(t *testing.T) {
	env.SetPolicy(t, map[string]string{"concurrency": "0"})
	ns := env.CreateHomeNamespace(t)
	env.Create(t, env.NewImage(ns, "paused", "/ok/100ms/a"), env.NewImage(ns, "gone", "/gone/a"))
	lacking := env.NewImage(ns, "lacking", "/ok/100ms/a")
	lacking.Spec.StorageClass = "gp4"
	env.Create(t, lacking)
	says := func(line ...string) bool {
		out, err := runKubectl(t, ns, "", "get", "vmdi", "--no-headers")
		require.NoError(t, err, out)
		for _, l := range strings.Split(out, "\n") {
			has := true
			for _, word := range line {
				has = has && strings.Contains(l, word)
			}
			if has {
				return true
			}
		}
		return false
	}
	for _, line := range [][]string{
		{"paused", "Queued", "Paused", "the policy's concurrency is 0"},
		{"gone", "Failed", "NotFound", "404"},
		{"lacking", "Queued", "StorageClassMissing", "StorageClass gp4 does not exist: create it, or correct spec.storageClass"},
	} {
		require.True(t, testenv.AwaitCondition(t, func() bool { return says(line...) }), "%v", line)
	}
	out, err := runKubectl(t, ns, strings.ReplaceAll(apitest.ProposedImage, "24Gi", "plenty"), "apply", "-f", "-")
	require.Error(t, err)
	assert.Contains(t, out, "diskSize")
}
