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
	"github.com/pelotech/ot-fleet/e2e/binaries"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// kubectl runs the command that people use, in a namespace.
func kubectl(t *testing.T, ns, stdin string, args ...string) (string, error) {
	t.Helper()
	paths, err := binaries.Ensure(t.Context(), binaries.Kubectl)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), paths[binaries.Kubectl], append([]string{"--namespace=" + ns}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+place.ControlPlane.Kubeconfig())
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestProposal is a pipeline that publishes an image and waits for it.
func TestProposal(t *testing.T) {
	place.SetPolicy(t, map[string]string{"concurrency": "3", "retryLimit": "2", "retryBackoffDuration": "5m"})
	place.CreateClasses(t, "gp3", "ebs-snapshot")
	ns := place.Namespace(t)
	place.Create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "foo-bar"}, StringData: map[string]string{"accessKeyId": "me", "secretKey": "mine"}})

	out, err := kubectl(t, ns, apitest.ProposedImage, "apply", "-f", "-")
	require.NoError(t, err, out)
	out, err = kubectl(t, ns, "", "wait", "--for=condition=Ready", "--timeout=170s", "vmdi/sync-workspace-123")
	state, stateErr := kubectl(t, ns, "", "get", "vmdi")
	require.NoError(t, err, "%s\n%s", out, state)
	require.NoError(t, stateErr, state)
	assert.Contains(t, state, "Succeeded")
	assert.Contains(t, state, "cloned from VolumeSnapshot")

	out, err = kubectl(t, ns, "", "get", "datavolumes,volumesnapshots", "-l", "pelotech.ot/image-uid", "-o", "name")
	require.NoError(t, err, out)
	assert.Len(t, strings.Fields(out), 2)

	out, err = kubectl(t, ns, "", "delete", "--cascade=foreground", "--timeout=170s", "vmdi/sync-workspace-123")
	require.NoError(t, err, out)
	out, err = kubectl(t, ns, "", "get", "datavolumes,volumesnapshots,pvc,pods", "-o", "name")
	require.NoError(t, err, out)
	assert.Empty(t, strings.TrimSpace(out))
}

// TestWhyIsItWaiting is a person who reads no documentation.
func TestWhyIsItWaiting(t *testing.T) {
	place.SetPolicy(t, map[string]string{"concurrency": "0"})
	ns := place.Namespace(t)
	place.Create(t, place.Image(ns, "paused", "/ok/100ms/a"), place.Image(ns, "gone", "/gone/a"))
	lacking := place.Image(ns, "lacking", "/ok/100ms/a")
	lacking.Spec.StorageClass = "gp4"
	place.Create(t, lacking)
	says := func(line ...string) bool {
		out, err := kubectl(t, ns, "", "get", "vmdi", "--no-headers")
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
		require.True(t, scene.Await(t, func() bool { return says(line...) }), "%v", line)
	}
	out, err := kubectl(t, ns, strings.ReplaceAll(apitest.ProposedImage, "24Gi", "plenty"), "apply", "-f", "-")
	require.Error(t, err)
	assert.Contains(t, out, "diskSize")
}
