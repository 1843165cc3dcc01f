//go:build linux

package cli_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/plugin"
)

func getFleetImage(t *testing.T, name string) *v1alpha1.FleetDiskImage {
	t.Helper()
	img := &v1alpha1.FleetDiskImage{}
	require.NoError(t, shared.Get(t.Context(), types.NamespacedName{Name: name}, img))
	return img
}

func publishArgs(name, version string, more ...string) []string {
	return append([]string{"image", "publish", name, "--version", version, "--url", shared.source.URL + "/" + name + "/" + version, "--size", "1Gi", "--target-namespace", fleet.Namespace}, more...)
}

// A version goes through its waves: two people approve at once, it is paused, and another
// version goes back to it without a download.
func TestRolloutByCommands(t *testing.T) {
	const name = "by-commands"
	deleteFleetImageAtEnd(t, name)
	manifest := `{"kind":"FleetDiskImage","spec":{"rollout":{"waves":[
		{"name":"canary","clusterSelector":{"matchLabels":{"region":"nordics"}}},
		{"name":"production","clusterSelector":{"matchLabels":{"region":"south"}},"requireApproval":true}]}}}`
	result, err := shared.Run(t.Context(), strings.NewReader(manifest), publishArgs(name, "1", "-l", "region in (nordics,south)", "-f", "-", "--dry-run", "server")...)
	require.NoError(t, err)
	require.Equal(t, 0, result.Code, result.Err)
	assert.Contains(t, result.Out, "for 2 of 2 clusters: at most 2 GiB")
	assert.Contains(t, result.Out, "nothing is written")
	shared.run(t, 2, "image", "wait", name)

	result, err = shared.Run(t.Context(), strings.NewReader(manifest), publishArgs(name, "1", "-l", "region in (nordics,south)", "-f", "-", "--wait")...)
	require.NoError(t, err)
	require.Equal(t, 4, result.Code, "it waits for a person: %s%s", result.Out, result.Err)
	assert.Contains(t, result.Err, "AwaitingApproval")
	shared.run(t, 0, "image", "wait", name, "--until-hold")
	shared.run(t, 0, "image", "wait", name, "--for", "wave=canary")
	shared.run(t, 0, "image", "wait", name, "--for", "in="+bergen)
	shared.run(t, 2, "image", "wait", name, "--for", "wave=nowhere")
	shared.run(t, 2, "image", "wait", name, "--for", "in=nowhere")

	var progress struct {
		Reason string
		Waves  []struct {
			Name       string
			ApprovedBy string
		}
		Paused *struct{ By, Because string }
	}
	shared.runJSON(t, 4, &progress, "rollout", "status", name)
	assert.Equal(t, v1alpha1.ReasonAwaitingApproval, progress.Reason)

	result = shared.run(t, 2, "rollout", "approve", name)
	assert.Contains(t, result.Err, "nobody can be asked here: add -y")
	assert.Empty(t, getFleetImage(t, name).Spec.Approvals)

	// Two at once: one gives the approval, the other is told who did.
	var both sync.WaitGroup
	answers := make([]plugin.Result, 2)
	for i := range answers {
		both.Go(func() {
			answers[i], _ = shared.Run(t.Context(), nil, "rollout", "approve", name, "--wave", "production", "-y", "-o", "json")
		})
	}
	both.Wait()
	given := 0
	for _, a := range answers {
		require.Equal(t, 0, a.Code, a.Err)
		var approval struct {
			Given   bool
			Already []struct{ By string }
		}
		require.NoError(t, json.Unmarshal([]byte(a.Out), &approval))
		if approval.Given {
			given++
		} else {
			require.Len(t, approval.Already, 1)
			assert.Equal(t, "system:serviceaccount:people:anna", approval.Already[0].By)
		}
	}
	assert.Equal(t, 1, given)
	require.Len(t, getFleetImage(t, name).Spec.Approvals, 1)
	shared.run(t, 0, "image", "wait", name)

	// The next version keeps what the first one set.
	shared.run(t, 4, publishArgs(name, "2", "--wait")...)
	img := getFleetImage(t, name)
	assert.Len(t, img.Spec.Rollout.Waves, 2)
	assert.Len(t, img.Spec.Approvals, 1)
	shared.run(t, 0, "rollout", "pause", name, "-m", "it does not boot")
	shared.runJSON(t, 4, &progress, "rollout", "status", name)
	require.NotNil(t, progress.Paused)
	assert.Equal(t, "it does not boot", progress.Paused.Because)
	assert.Equal(t, "system:serviceaccount:people:anna", progress.Paused.By)

	result = shared.run(t, 0, "rollout", "history", name)
	assert.Contains(t, result.Out, "production: system:serviceaccount:people:anna")
	shared.run(t, 2, "rollout", "abort", name, "--back-to", "0", "-y")
	result = shared.run(t, 0, "rollout", "abort", name, "--back-to", "1", "-y")
	assert.Contains(t, result.Out, "version 1 is wanted again")
	shared.run(t, 0, "image", "wait", name)
	img = getFleetImage(t, name)
	assert.Equal(t, "1", img.Spec.Version)
	assert.False(t, img.Spec.Rollout.Paused)
	assert.EqualValues(t, 1, shared.Members[bergen].GetImage(t, img.ImageNameForVersion("1")).Status.LastAttempt, "nothing is downloaded again")

	var where struct {
		Clusters []struct {
			Cluster string
			Has     map[string]struct{ Phase string }
		}
	}
	shared.runJSON(t, 0, &where, "image", "where", name)
	require.Len(t, where.Clusters, 2)
	assert.Equal(t, "Succeeded", where.Clusters[0].Has["2"].Phase)
	assert.NotContains(t, where.Clusters[1].Has, "2")
	shared.run(t, 2, "image", "retry", name)
}

// What GitOps owns is not changed, and the owner is named.
func TestGitOpsOwnsTheRollout(t *testing.T) {
	const name = "by-flux"
	deleteFleetImageAtEnd(t, name)
	shared.run(t, 0, publishArgs(name, "1", "--clusters", bergen, "--wait")...)
	applied := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "FleetDiskImage",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"kustomize.toolkit.fluxcd.io/name": "images", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}},
		"spec":     map[string]any{"version": "1", "rollout": map[string]any{"paused": false}},
	}}
	require.NoError(t, shared.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner("kustomize-controller"), client.ForceOwnership))
	for _, args := range [][]string{publishArgs(name, "2"), {"rollout", "pause", name}, {"rollout", "abort", name}} {
		result := shared.run(t, 2, args...)
		assert.Contains(t, result.Err, "Flux (Kustomization flux-system/images) owns spec.")
	}
	assert.Equal(t, "1", getFleetImage(t, name).Spec.Version)
	result := shared.run(t, 0, publishArgs(name, "2", "--force-conflicts", "--wait")...)
	assert.Contains(t, result.Out, "change it in Git, or it comes back")
	assert.Equal(t, "2", getFleetImage(t, name).Spec.Version)
}
