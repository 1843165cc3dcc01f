//go:build linux

package chart_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/binaries"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
)

// An API server that does not serve ValidatingAdmissionPolicies is told of by helm, by
// name, before anything is installed.
func TestAPIServerWithoutPolicies(t *testing.T) {
	programs, err := binaries.Ensure(t.Context(), binaries.Helm)
	require.NoError(t, err)
	plane, err := controlplane.Start(t.Context(), controlplane.Options{Name: "nopolicies",
		APIServerArgs: []string{"--runtime-config=admissionregistration.k8s.io/v1/validatingadmissionpolicies=false", "--disable-admission-plugins=ValidatingAdmissionPolicy"}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, plane.Stop()) })
	for name, path := range charts {
		output, err := exec.CommandContext(t.Context(), programs[binaries.Helm], "install", name, folder(t, path),
			"--namespace", name, "--create-namespace", "--kubeconfig", plane.Kubeconfig()).CombinedOutput()
		require.Error(t, err)
		assert.Contains(t, string(output), "this cluster does not serve ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1", name)
	}
}
