//go:build linux

package chart_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/chart"
)

// What a cluster lacks is said before anything is installed in it.
func TestMissingPrerequisitesFailTheRender(t *testing.T) {
	programs, err := binaries.Ensure(t.Context(), binaries.Helm)
	require.NoError(t, err)
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"it is too old":             {[]string{"--kube-version", "1.29.3"}, "chart requires kubeVersion: >=1.30.0-0 which is incompatible with Kubernetes v1.29.3"},
		"it serves no such policy":  {[]string{"--kube-version", chart.KubeVersion, "--api-versions", "v1/Pod"}, "this cluster does not serve ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1"},
		"it serves what is needed":  {[]string{"--kube-version", chart.KubeVersion, "--api-versions", "v1/Pod,admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"}, ""},
		"nobody knows what it does": {[]string{"--kube-version", chart.KubeVersion}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for chart, path := range chartPaths {
				output, err := exec.CommandContext(t.Context(), programs[binaries.Helm], append([]string{"template", chart, chartPath(t, path)}, test.args...)...).CombinedOutput()
				if test.want == "" {
					require.NoError(t, err, "%s", output)
					continue
				}
				require.Error(t, err, chart)
				assert.Contains(t, string(output), test.want, chart)
			}
		})
	}
}

// `helm test` asks the Service by an account of its own, with the image of the program.
func TestHelmTestPod(t *testing.T) {
	for name, path := range chartPaths {
		tests, err := chart.RenderTests(t.Context(), path, name, "ot-system", map[string]any{"image": map[string]any{"tag": "v9"}})
		require.NoError(t, err)
		rendered := renderedChart{}
		for _, object := range tests {
			rendered[object.GetKind()] = object
			assert.Equal(t, "test", object.GetAnnotations()["helm.sh/hook"])
			assert.NotEmpty(t, object.GetAnnotations()["helm.sh/hook-delete-policy"])
		}
		assert.Equal(t, parseYAML(t, `[{kind: ServiceAccount, name: `+name+`-test, namespace: ot-system}]`), valueAt(t, rendered["ClusterRoleBinding"], "subjects"))
		assert.Equal(t, name+"-reader", valueAt(t, rendered["ClusterRoleBinding"], "roleRef", "name"))
		assert.Equal(t, name+"-test", valueAt(t, rendered["Pod"], "spec", "serviceAccountName"))
		assert.Equal(t, "ghcr.io/pelotech/"+name+":v9", valueAt(t, rendered["Pod"], "spec", "containers", "0", "image"))
		assert.Equal(t, []any{"--check-url=https://" + name + ".ot-system.svc/metrics"}, valueAt(t, rendered["Pod"], "spec", "containers", "0", "args"))
		_, deployment := renderWorkload(t, name, `{}`)
		selector := deployment("spec", "selector", "matchLabels").(map[string]any)
		assert.NotEqual(t, selector["app.kubernetes.io/name"], rendered["Pod"].GetLabels()["app.kubernetes.io/name"], "no Service leads to the test")
	}
}
