//go:build linux

package cli_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/plugin"
)

// A mirror for one cluster is approved of by its source, shown where it is, approved of again after
// another override, and comes back with its version.
func TestOverridesByCommands(t *testing.T) {
	const name = "unlike"
	deleteFleetImageAtEnd(t, name)
	mirror := shared.source.URL + "/mirror/" + name
	publish := func(version, overrides string, more ...string) plugin.Result {
		manifest := `{"kind":"FleetDiskImage","spec":{"overrides":[` + overrides + `],"rollout":{"waves":[{"name":"all","clusterSelector":{},"requireApproval":true}]}}}`
		result, err := shared.Run(t.Context(), strings.NewReader(manifest), publishArgs(name, version, append([]string{"-l", "region in (nordics,south)", "-f", "-"}, more...)...)...)
		require.NoError(t, err)
		return result
	}
	kielsMirror := `{"clusterNames":["` + kiel + `"],"url":"` + mirror + `"}`

	result := publish("1", `{"clusterNames":["`+kiel+`"],"sourceType":"registry"}`, "--dry-run", "client")
	require.Equal(t, 1, result.Code, result.Err)
	assert.Contains(t, result.Out, "kiel cannot begin: spec.overrides[0] makes no valid image of the template: url must start with docker://")

	result = publish("1", kielsMirror, "--wait")
	require.Equal(t, 4, result.Code, "%s%s", result.Out, result.Err)
	var approval struct {
		Sources []struct {
			Digest, Source string
			From           []string
			Clusters       int
		}
	}
	shared.runJSON(t, 0, &approval, "rollout", "approve", name, "-y")
	require.Len(t, approval.Sources, 2)
	stored := getFleetImage(t, name).Spec.Approvals
	require.Len(t, stored, 1)
	assert.ElementsMatch(t, []string{approval.Sources[0].Digest, approval.Sources[1].Digest}, stored[0].Sources)
	shared.run(t, 0, "image", "wait", name)
	shared.run(t, 0, "image", "wait", name, "--for", "in="+kiel)

	result = shared.run(t, 0, "image", "where", name)
	assert.Contains(t, result.Out, "from overrides[0]")
	assert.Contains(t, result.Out, "from the template")
	assert.Equal(t, 2, strings.Count(result.Out, "✓ ready"), result.Out)
	result = shared.run(t, 0, "image", "where", name, "--cluster", kiel)
	assert.Regexp(t, `url +\S+/mirror/unlike +overrides\[0\]`, result.Out)

	result = publish("1", kielsMirror+`,{"clusterNames":["`+bergen+`"],"storageClass":"other"}`, "--dry-run", "server")
	assert.Contains(t, result.Out, "1 cluster from ", "only bergen downloads")

	// The new version's url does not reach kiel, and its approval is by source again.
	result = shared.run(t, 0, publishArgs(name, "2")...)
	assert.Contains(t, result.Out, "the new url does not reach 1 cluster (kiel): spec.overrides[0].url is as before")
	shared.run(t, 4, "image", "wait", name)
	result = publish("2", "", "--wait")
	require.Equal(t, 4, result.Code, "%s%s", result.Out, result.Err)
	assert.Empty(t, getFleetImage(t, name).Spec.Overrides)

	shared.run(t, 0, "rollout", "abort", name, "--back-to", "1", "-y")
	back := getFleetImage(t, name)
	require.Len(t, back.Spec.Overrides, 1, "those of version 1 come back")
	assert.Equal(t, mirror, *back.Spec.Overrides[0].URL)
	shared.run(t, 0, "image", "wait", name)
}
