//go:build linux

package journeys

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// runKubectl runs the command that people use, in a namespace.
func runKubectl(t *testing.T, ns, stdin string, args ...string) (string, error) {
	t.Helper()
	paths, err := binaries.Ensure(t.Context(), binaries.Kubectl)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), paths[binaries.Kubectl], append([]string{"--namespace=" + ns}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+testScene.ControlPlane.Kubeconfig())
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestPipelinePublishesAndWaits is a pipeline that publishes an image and waits for it.
func TestPipelinePublishesAndWaits(t *testing.T) {
	testScene.SetPolicy(t, map[string]string{"concurrency": "3", "retryLimit": "2", "retryBackoffDuration": "5m"})
	testScene.CreateStorageClasses(t, "gp3", "ebs-snapshot")
	ns := testScene.CreateNamespace(t)
	testScene.Create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "foo-bar"}, StringData: map[string]string{"accessKeyId": "me", "secretKey": "mine"}})

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
	out, err = runKubectl(t, ns, "", "get", "datavolumes,volumesnapshots,pvc,pods", "-o", "name")
	require.NoError(t, err, out)
	assert.Empty(t, strings.TrimSpace(out))
}

// TestWaitingReasonIsShownByKubectl is a person who reads no documentation.
func TestWaitingReasonIsShownByKubectl(t *testing.T) {
	testScene.SetPolicy(t, map[string]string{"concurrency": "0"})
	ns := testScene.CreateNamespace(t)
	testScene.Create(t, testScene.NewImage(ns, "paused", "/ok/100ms/a"), testScene.NewImage(ns, "gone", "/gone/a"))
	lacking := testScene.NewImage(ns, "lacking", "/ok/100ms/a")
	lacking.Spec.StorageClass = "gp4"
	testScene.Create(t, lacking)
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
		require.True(t, testenv.Await(t, func() bool { return says(line...) }), "%v", line)
	}
	out, err := runKubectl(t, ns, strings.ReplaceAll(apitest.ProposedImage, "24Gi", "plenty"), "apply", "-f", "-")
	require.Error(t, err)
	assert.Contains(t, out, "diskSize")
}
