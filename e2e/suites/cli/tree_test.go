//go:build linux

package cli_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestTree(t *testing.T) {
	testenv.RunInTurn(t, 6)
	const name = "tree"
	img := fleet.NewFleetImage(name, bergen, kiel)
	img.Spec.Version = "1.0.0"
	img.Spec.Template.URL = shared.source.URL + "/" + name
	img.Spec.DeletionPolicy = v1alpha1.DeletionDelete
	shared.CreateForTest(t, img)
	image := name + "-1.0.0"
	for _, m := range []string{bergen, kiel} {
		shared.Members[m].AwaitPhase(t, image, v1alpha1.PhaseSucceeded)
	}
	shared.run(t, 0, "image", "wait", name, "--timeout", "2m")
	result := shared.run(t, 0, "tree", "rollout", name)
	assert.Contains(t, result.Out, "2 clusters: bergen kiel")

	// Of the member itself, by the context of its name.
	result = shared.run(t, 0, "tree", "image", image, "--cluster", bergen, "--live")
	assert.Contains(t, result.Out, "VMDiskImage default/"+image)
	assert.Contains(t, result.Out, "serves")
	assert.Contains(t, result.Out, "PersistentVolumeClaim")
	assert.Contains(t, result.Out, "referenced by nothing")

	shared.Members[bergen].CreateMachine(t, name, image)
	shared.run(t, 0, "why", "machine", name, "--cluster", bergen, "--live", "-w", "--timeout", "2m")
	result = shared.run(t, 0, "tree", "machine", name, "--cluster", bergen, "--live")
	assert.Contains(t, result.Out, "VMDiskImage default/"+image)

	result, err := shared.Run(t.Context(), nil, "tree", "image", "nothing", "--cluster", bergen, "--live")
	require.NoError(t, err)
	assert.Equal(t, 2, result.Code)
	assert.Contains(t, result.Err, `"nothing" not found`)
}
