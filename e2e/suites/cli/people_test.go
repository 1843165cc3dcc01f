//go:build linux

package cli_test

import (
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/plugin"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestVersion(t *testing.T) {
	testenv.RunInTurn(t, 10)
	var v struct {
		Client struct{ Version string }
		Hub    struct{ Context, Version, Problem string }
		Agents []struct {
			Version  string
			Clusters []string
		}
	}
	shared.runJSON(t, 0, &v, "version")
	assert.Equal(t, "v0.0.0-test", v.Client.Version)
	assert.Equal(t, hubContext, v.Hub.Context)
	assert.NotEmpty(t, v.Hub.Version, v.Hub.Problem)
	require.Len(t, v.Agents, 1)
	assert.Equal(t, []string{bergen, kiel}, v.Agents[0].Clusters)
	assert.NotContains(t, shared.run(t, 0, "version", "--client", "--kubeconfig", "/nowhere").Out, "hub")
	assert.Contains(t, shared.run(t, 2, "version", "--hub", "nowhere").Err, "v0.0.0-test")
}

// TestEventsAndLogs shows what hub and member say of an image that fails.
func TestEventsAndLogs(t *testing.T) {
	name := "eventful-" + strings.ToLower(rand.Text()[:8]) // events outlive what they are about
	img := fleet.NewFleetImage(name, bergen)
	img.Spec.Version = "1.0.0"
	img.Spec.Template.URL = shared.source.URL + "/missing/" + name
	img.Spec.DeletionPolicy = v1alpha1.DeletionDelete
	shared.CreateForTest(t, img)
	image := name + "-1.0.0"
	shared.Members[bergen].AwaitPhase(t, image, v1alpha1.PhaseFailed)

	type event struct{ Side, Object, Reason string }
	var events struct{ Events []event }
	failed := -1
	require.True(t, testenv.AwaitCondition(t, func() bool { // events are written after the status
		shared.runJSON(t, 0, &events, "events", name, "--cluster", bergen)
		failed = slices.IndexFunc(events.Events, func(e event) bool { return e.Side == bergen && e.Object == "VMDiskImage default/"+image })
		return failed >= 0
	}), "%v", &events)
	result := shared.run(t, 0, "events", "image", image, "--hub", hubContext, "--cluster", bergen)
	assert.Contains(t, result.Out, "VMDiskImage default/"+image)
	streamed := shared.run(t, 3, "events", name, "--cluster", bergen, "-w", "--timeout", "5s").Out
	assert.Equal(t, 1, strings.Count(streamed, events.Events[failed].Reason+"  "+events.Events[failed].Object+": "), "each once: %s", streamed)
	assert.Contains(t, shared.run(t, 2, "events", "image", name, "-n", "farm", "--cluster", bergen).Err, "-n farm: "+name+" is a FleetDiskImage, which has no namespace: leave it out")
	assert.Contains(t, shared.run(t, 2, "events", bergen, "-n", "farm").Err, "-n farm: "+bergen+" is a cluster, which has no namespace: leave it out")
	assert.Contains(t, shared.run(t, 2, "events", "nothing", "--cluster", bergen).Err, "there is no FleetDiskImage nothing on the hub, and no VMDiskImage default/nothing in context bergen")

	result = shared.run(t, 1, "logs", image, "--cluster", bergen)
	assert.Contains(t, result.Out, "No importer runs for default/"+image)
	assert.Contains(t, result.Out, "The last failure")
	assert.Contains(t, result.Out, "404")
	assert.Contains(t, shared.run(t, 2, "logs", "nothing", "--cluster", bergen).Err, `"nothing" not found`)
}

// TestQuarantine cuts a member off and lets it back.
func TestQuarantine(t *testing.T) {
	read := func() *v1alpha1.MemberCluster { return testenv.GetMember(t, shared.Fleet, bergen) }
	assert.Contains(t, shared.run(t, 2, "quarantine", bergen).Err, "quarantine needs --reason")
	assert.Contains(t, shared.run(t, 2, "quarantine", "nothing", "--reason", "a").Err, `"nothing" not found`)
	t.Cleanup(func() {
		_, err := shared.Run(context.Background(), nil, "quarantine", bergen, "--end")
		assert.NoError(t, err)
	})
	result := shared.run(t, 0, "quarantine", bergen, "--reason", "reports 256 imports")
	assert.Contains(t, result.Out, "is not revoked")
	assert.Contains(t, result.Out, "delete secret ot-hub-access")
	require.Equal(t, "reports 256 imports", read().Spec.Quarantine.Reason)
	assert.Contains(t, shared.run(t, 0, "quarantine", bergen, "--reason", "reports 256 imports").Out, "in quarantine already")
	assert.Contains(t, shared.run(t, 0, "quarantine", bergen, "--end").Out, "has ended")
	require.Nil(t, read().Spec.Quarantine)
	shared.AwaitMember(t, bergen, "Ready after its quarantine", fleet.IsReady, func(m *v1alpha1.MemberCluster) bool { return m.Status.ObservedGeneration == m.Generation })
}

// TestCompletion completes names as kubectl does, by the program that it looks for.
func TestCompletion(t *testing.T) {
	testenv.RunInTurn(t, 12)
	// A shell does not wait for a slow server: without an answer in time there are no names.
	for typed, want := range map[string]string{"leave ": bergen + "\n" + kiel + "\n:4\n", "top --cluster b": bergen + "\n:4\n"} {
		require.True(t, testenv.AwaitCondition(t, func() bool {
			return strings.Contains(shared.run(t, 0, append([]string{"__complete"}, strings.Split(typed, " ")...)...).Out, want)
		}), "%q is completed by %q", typed, want)
	}
	assert.Contains(t, shared.run(t, 0, "__complete", "leave", "--hub", "nowhere", "").Out, ":5\n", "an error, and no names")

	built, err := plugin.Build()
	require.NoError(t, err)
	dir := t.TempDir()
	binary, err := os.ReadFile(built)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, plugin.Name), binary, 0o700))
	install := exec.CommandContext(t.Context(), filepath.Join(dir, plugin.Name), "completion", "install")
	out, err := install.CombinedOutput()
	require.NoError(t, err, "%s", out)
	installed := strings.TrimSpace(string(out))
	require.True(t, testenv.AwaitCondition(t, func() bool {
		complete := exec.CommandContext(t.Context(), installed, "quarantine", "k")
		complete.Env = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig)
		out, err = complete.Output()
		require.NoError(t, err)
		return strings.Contains(string(out), kiel+"\n")
	}), "%s", out)
	assert.Contains(t, shared.run(t, 0, "completion", "bash").Out, "kubectl")
}
