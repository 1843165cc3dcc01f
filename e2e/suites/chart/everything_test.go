//go:build linux

package chart_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/chart"
)

const allValuesDir = "e2e/suites/chart/everything"

// loadAllValues are values that ask for all that a chart can make, but for valuesLeftUnset.
func loadAllValues(t *testing.T, name string) map[string]any {
	t.Helper()
	values := readChartFile(t, allValuesDir, "both.yaml")
	for key, value := range readChartFile(t, allValuesDir, name+".yaml") {
		require.NotContains(t, values, key, "it would take the place of what both have")
		values[key] = value
	}
	return values
}

// valuesLeftUnset is what everything leaves empty or off, and why.
var valuesLeftUnset = map[string]string{
	"/image/tag":                                "image.digest takes its place",
	"/metrics/serviceMonitor/enabled":           checkedByPrometheusOperator,
	"/metrics/serviceMonitor/labels":            checkedByPrometheusOperator,
	"/metrics/serviceMonitor/authorization":     checkedByPrometheusOperator,
	"/metrics/serviceMonitor/relabelings":       checkedByPrometheusOperator,
	"/metrics/serviceMonitor/metricRelabelings": checkedByPrometheusOperator,
	"/metrics/rules/enabled":                    checkedByPrometheusOperator,
	"/metrics/rules/labels":                     checkedByPrometheusOperator,
	"/metrics/rules/alertLabels":                checkedByPrometheusOperator,
}

const checkedByPrometheusOperator = "Prometheus' operator judges it, in TestPrometheusOperatorKnowsEveryField"

// What values.yaml shows as empty or off is filled and on in everything: what a new
// switch makes is looked at without anybody thinking of it.
func TestAllValuesSetEverySwitch(t *testing.T) {
	for name, path := range chartPaths {
		t.Run(name, func(t *testing.T) {
			given := loadAllValues(t, name)
			known := valuesSchema{readChartFile(t, path, "values.schema.json")}
			left := []string{}
			known.walkObjects(t, "", known.root, readChartFile(t, path, "values.yaml"), func(path string, node map[string]any, value any) {
				if _, below := node["properties"].(map[string]any); below && !slices.Contains(podValueObjects, path) || !isEmptyValue(value) {
					return
				}
				var asked any = given
				for _, key := range strings.Split(strings.TrimPrefix(path, "/"), "/") {
					in, _ := asked.(map[string]any)
					asked = in[key]
				}
				if isEmptyValue(asked) {
					left = append(left, path)
				}
			})
			assert.ElementsMatch(t, slices.Collect(maps.Keys(valuesLeftUnset)), left)
		})
	}
}

// isEmptyValue tells of values that ask for nothing.
func isEmptyValue(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

// Every file of templates makes something of everything, so that what it makes is held
// against its kinds, here and by make lint-charts.
func TestEveryTemplateRendersWithAllValues(t *testing.T) {
	programs, err := binaries.Ensure(t.Context(), binaries.Helm)
	require.NoError(t, err)
	for name, path := range chartPaths {
		t.Run(name, func(t *testing.T) {
			files, err := filepath.Glob(filepath.Join(chartPath(t, path), "templates", "*.yaml"))
			require.NoError(t, err)
			ofTests, err := filepath.Glob(filepath.Join(chartPath(t, path), "templates", "tests", "*.yaml"))
			require.NoError(t, err)
			want := []string{}
			for _, file := range append(files, ofTests...) {
				relative, err := filepath.Rel(chartPath(t, path), file)
				require.NoError(t, err)
				if relative != filepath.Join("templates", "requirements.yaml") { // it only says what a cluster lacks
					want = append(want, filepath.Join(name, relative))
				}
			}
			require.Greater(t, len(want), 15)

			values := filepath.Join(t.TempDir(), "values.yaml")
			text, err := yaml.Marshal(loadAllValues(t, name))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(values, text, 0o600))
			output, err := exec.CommandContext(t.Context(), programs[binaries.Helm], "template", "any", chartPath(t, path),
				"--kube-version", chart.KubeVersion, "--values", values).CombinedOutput()
			require.NoError(t, err, "%s", output)
			makes := map[string]bool{}
			for _, document := range strings.Split(string(output), "\n---\n") {
				object := map[string]any{}
				require.NoError(t, yaml.Unmarshal([]byte(document), &object))
				for _, line := range strings.Split(document, "\n") {
					if source, ok := strings.CutPrefix(line, "# Source: "); ok && object["kind"] != nil {
						makes[source] = true
					}
				}
			}
			assert.ElementsMatch(t, want, slices.Collect(maps.Keys(makes)))
		})
	}
}

// The API server knows every field of all that the charts can make, with what `helm
// test` makes: it is asked to apply them strictly, and to keep nothing.
func TestAPIServerKnowsEveryRenderedField(t *testing.T) {
	for name, path := range chartPaths {
		namespace := map[string]string{"ot-agent": agentNamespace, "ot-hub": hubNamespace}[name]
		values := loadAllValues(t, name)
		release := strings.TrimPrefix(name, "ot-")
		rendered, err := chart.Render(t.Context(), path, release, namespace, values)
		require.NoError(t, err)
		tests, err := chart.RenderTests(t.Context(), path, release, namespace, values)
		require.NoError(t, err)
		require.Len(t, tests, 3)
		for _, object := range append(rendered, tests...) {
			err := adminClient.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.DryRunAll, client.FieldOwner("helm"), client.ForceOwnership)
			assert.NoError(t, err, "%s: %s %s", name, object.GetKind(), object.GetName())
		}
	}
}
