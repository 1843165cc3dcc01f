//go:build linux

package chart_test

import (
	_ "embed"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/e2e/binaries"
	"github.com/pelotech/ot-fleet/e2e/chart"
)

// What a cluster lacks is said before anything is installed in it.
func TestClustersThatLackSomething(t *testing.T) {
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
			for chart, path := range charts {
				output, err := exec.CommandContext(t.Context(), programs[binaries.Helm], append([]string{"template", chart, folder(t, path)}, test.args...)...).CombinedOutput()
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

// everything that values can ask for.
//
//go:embed everything.yaml
var everything []byte

// The API server knows every field of all that the charts can make, with what `helm
// test` makes: it is asked to apply them strictly, and to keep nothing.
func TestAPIServerKnowsEveryField(t *testing.T) {
	values := map[string]any{}
	require.NoError(t, yaml.Unmarshal(everything, &values))
	for name, path := range charts {
		namespace := map[string]string{"ot-agent": agentNamespace, "ot-hub": hubNamespace}[name]
		release := strings.TrimPrefix(name, "ot-")
		rendered, err := chart.Render(t.Context(), path, release, namespace, values)
		require.NoError(t, err)
		tests, err := chart.RenderTests(t.Context(), path, release, namespace, values)
		require.NoError(t, err)
		require.Len(t, tests, 3)
		for _, object := range append(rendered, tests...) {
			err := server.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.DryRunAll, client.FieldOwner("helm"), client.ForceOwnership)
			assert.NoError(t, err, "%s: %s %s", name, object.GetKind(), object.GetName())
		}
	}
}

// `helm test` asks the Service by an account of its own, with the image of the program.
func TestWhatHelmTestAsks(t *testing.T) {
	for name, path := range charts {
		tests, err := chart.RenderTests(t.Context(), path, name, "ot-system", map[string]any{"image": map[string]any{"tag": "v9"}})
		require.NoError(t, err)
		rendered := manifest{}
		for _, object := range tests {
			rendered[object.GetKind()] = object
			assert.Equal(t, "test", object.GetAnnotations()["helm.sh/hook"])
			assert.NotEmpty(t, object.GetAnnotations()["helm.sh/hook-delete-policy"])
		}
		assert.Equal(t, parsed(t, `[{kind: ServiceAccount, name: `+name+`-test, namespace: ot-system}]`), at(t, rendered["ClusterRoleBinding"], "subjects"))
		assert.Equal(t, name+"-reader", at(t, rendered["ClusterRoleBinding"], "roleRef", "name"))
		assert.Equal(t, name+"-test", at(t, rendered["Pod"], "spec", "serviceAccountName"))
		assert.Equal(t, "ghcr.io/pelotech/"+name+":v9", at(t, rendered["Pod"], "spec", "containers", "0", "image"))
		assert.Equal(t, []any{"--check-url=https://" + name + ".ot-system.svc/metrics"}, at(t, rendered["Pod"], "spec", "containers", "0", "args"))
		_, deployment := workload(t, name, `{}`)
		selector := deployment("spec", "selector", "matchLabels").(map[string]any)
		assert.NotEqual(t, selector["app.kubernetes.io/name"], rendered["Pod"].GetLabels()["app.kubernetes.io/name"], "no Service leads to the test")
	}
}
