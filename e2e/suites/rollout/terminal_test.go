//go:build linux

package rollout_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
)

// runKubectl runs the command that people use, on the hub.
func runKubectl(t *testing.T, stdin []byte, args ...string) (string, error) {
	t.Helper()
	paths, err := binaries.Ensure(t.Context(), binaries.Kubectl)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), paths[binaries.Kubectl], args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+shared.Plane.Kubeconfig())
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// A pipeline applies a version and waits for it, as the README says. That the
// version before has finished does not end the wait, also where no hub is there to
// say otherwise.
func TestPipelineAwaitsRollout(t *testing.T) {
	img := shared.newFleetImage("pipeline", bergen, edge)
	applied := func() []byte {
		img := img.DeepCopy()
		img.TypeMeta.APIVersion, img.TypeMeta.Kind = v1alpha1.GroupVersion.String(), "FleetDiskImage"
		img.ResourceVersion, img.Status = "", v1alpha1.FleetDiskImageStatus{}
		text, err := yaml.Marshal(img)
		require.NoError(t, err)
		// What a pipeline applies has no status, nor what the API server sets.
		text, _, _ = bytes.Cut(text, []byte("status:\n"))
		return text
	}
	shared.createFleetImage(t, img.DeepCopy()) // for it to go with the test
	out, err := runKubectl(t, applied(), "apply", "--server-side", "--force-conflicts", "-f", "-")
	require.NoError(t, err, out)
	wait := func(timeout string) (string, error) {
		return runKubectl(t, nil, "wait", "--for=condition=Finished", "--timeout="+timeout, "fdi/pipeline")
	}
	out, err = wait("170s")
	require.NoError(t, err, out)
	shared.Members[edge].AwaitPhase(t, img.ImageNameForVersion("1"), v1alpha1.PhaseSucceeded)

	shared.Hub.Kill()
	<-shared.Hub.Done()
	t.Cleanup(func() { shared.RestartHub(t) })
	shared.setVersion(img, "2")
	out, err = runKubectl(t, applied(), "apply", "--server-side", "--force-conflicts", "-f", "-")
	require.NoError(t, err, out)
	out, err = wait("1s")
	require.Error(t, err, "that of the version before counts: %s", out)
	assert.Contains(t, out, "timed out")

	shared.RestartHub(t)
	out, err = wait("170s")
	require.NoError(t, err, out)
	for _, cluster := range []string{bergen, edge} {
		shared.Members[cluster].AwaitPhase(t, img.ImageNameForVersion("2"), v1alpha1.PhaseSucceeded)
	}
	out, err = runKubectl(t, nil, "get", "fdi", "pipeline")
	require.NoError(t, err, out)
	for _, word := range []string{"VERSION", "PHASE", "Succeeded"} {
		assert.Contains(t, out, word)
	}
	out, err = runKubectl(t, nil, "get", "fdi", "pipeline", "-o", "jsonpath={.status.phase}")
	require.NoError(t, err, out)
	assert.Equal(t, string(v1alpha1.RolloutSucceeded), strings.TrimSpace(out))

	// A rollout that fails ends the wait as well.
	shared.setMissingSource(img)
	out, err = runKubectl(t, applied(), "apply", "--server-side", "--force-conflicts", "-f", "-")
	require.NoError(t, err, out)
	out, err = wait("170s")
	require.NoError(t, err, out)
	out, err = runKubectl(t, nil, "get", "fdi", "pipeline", "-o", "jsonpath={.status.phase} {.status.reason}")
	require.NoError(t, err, out)
	assert.Equal(t, "Failed MaxFailures", strings.TrimSpace(out))
}
