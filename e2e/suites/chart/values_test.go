//go:build linux

package chart_test

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// openValueObjects may have keys that the schema does not name: values shared with other charts,
// maps, and objects that the API server validates.
var openValueObjects = []string{"/global", "/policy/data"}

// podValueObjects are copied into the Pod: values.yaml does not show all of their fields.
var podValueObjects = []string{"/affinity", "/resources"}

var chartPaths = map[string]string{"ot-agent": agentChart, "ot-hub": hubChart}

// readChartFile decodes a YAML or JSON file of a chart.
func readChartFile(t *testing.T, path, file string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", path, file))
	require.NoError(t, err)
	parsed := map[string]any{}
	require.NoError(t, yaml.Unmarshal(text, &parsed))
	return parsed
}

// valuesSchema is the schema of a chart's values.
type valuesSchema struct{ root map[string]any }

func (s valuesSchema) resolve(t *testing.T, node any) map[string]any {
	t.Helper()
	found := node.(map[string]any)
	if ref, ok := found["$ref"].(string); ok {
		found = s.root["$defs"].(map[string]any)[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
	}
	return found
}

// walkObjects visits every object with properties in the schema, and every leaf, except
// deprecated ones, which are accepted from earlier values and are not in values.yaml.
func (s valuesSchema) walkObjects(t *testing.T, path string, node any, values any, visit func(path string, node map[string]any, value any)) {
	t.Helper()
	resolved := s.resolve(t, node)
	if resolved["deprecated"] == true {
		return
	}
	visit(path, resolved, values)
	properties, _ := resolved["properties"].(map[string]any)
	if resolved["type"] != "object" || slices.Contains(podValueObjects, path) {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		below, _ := values.(map[string]any)
		s.walkObjects(t, path+"/"+name, properties[name], below[name], visit)
	}
}

// TestValuesMatchTheirSchema wants the same keys in values.yaml and in the schema.
func TestValuesMatchTheirSchema(t *testing.T) {
	for name, path := range chartPaths {
		t.Run(name, func(t *testing.T) {
			values, known := readChartFile(t, path, "values.yaml"), valuesSchema{readChartFile(t, path, "values.schema.json")}
			known.walkObjects(t, "", known.root, values, func(path string, node map[string]any, value any) {
				properties, _ := node["properties"].(map[string]any)
				if len(properties) == 0 || slices.Contains(podValueObjects, path) {
					assert.NotNil(t, value, "%s is in the schema, not in values.yaml", path)
					return
				}
				shown, ok := value.(map[string]any)
				require.True(t, ok, "%s is an object in the schema, not in values.yaml", path)
				for key := range shown {
					assert.Contains(t, properties, key, "%s/%s is in values.yaml, not in the schema", path, key)
				}
				if !slices.Contains(openValueObjects, path) {
					assert.Equal(t, false, node["additionalProperties"], "%s accepts unknown keys", path)
				}
			})
		})
	}
}

// TestUnknownKeysAreRejectedByName wants one error that names all unknown keys.
func TestUnknownKeysAreRejectedByName(t *testing.T) {
	const stranger = "surprise"
	for name, path := range chartPaths {
		t.Run(name, func(t *testing.T) {
			known, given, want := valuesSchema{readChartFile(t, path, "values.schema.json")}, map[string]any{}, []string{}
			known.walkObjects(t, "", known.root, nil, func(path string, node map[string]any, _ any) {
				if node["additionalProperties"] != false || node["type"] != "object" {
					return
				}
				into := given
				for _, key := range strings.Split(strings.TrimPrefix(path, "/"), "/") {
					if key == "" {
						continue
					}
					if into[key] == nil {
						into[key] = map[string]any{}
					}
					into = into[key].(map[string]any)
				}
				into[stranger] = true
				want = append(want, "at '"+path+"': additional properties '"+stranger+"' not allowed")
			})
			require.Greater(t, len(want), 10)
			_, err := chart.Render(t.Context(), path, name, "ot-system", given)
			require.Error(t, err)
			for _, says := range want {
				assert.Contains(t, err.Error(), says)
			}
		})
	}
}

// TestWrongTypesAreRejectedByName wants one error that names all values of a wrong type.
func TestWrongTypesAreRejectedByName(t *testing.T) {
	for name, path := range chartPaths {
		t.Run(name, func(t *testing.T) {
			values, known, given, want := readChartFile(t, path, "values.yaml"), valuesSchema{readChartFile(t, path, "values.schema.json")}, map[string]any{}, []string{}
			known.walkObjects(t, "", known.root, values, func(path string, node map[string]any, value any) {
				properties, _ := node["properties"].(map[string]any)
				if len(properties) > 0 && !slices.Contains(podValueObjects, path) {
					return
				}
				keys := strings.Split(strings.TrimPrefix(path, "/"), "/")
				into := given
				for _, key := range keys[:len(keys)-1] {
					if into[key] == nil {
						into[key] = map[string]any{}
					}
					into = into[key].(map[string]any)
				}
				var wrong any = true
				if _, ok := value.(bool); ok {
					wrong = "yes"
				}
				into[keys[len(keys)-1]] = wrong
				want = append(want, "at '"+path+"'")
			})
			require.Greater(t, len(want), 30)
			_, err := chart.Render(t.Context(), path, name, "ot-system", given)
			require.Error(t, err)
			for _, says := range want {
				assert.Contains(t, err.Error(), says)
			}
		})
	}
}

func TestListAndMapItemsAreValidated(t *testing.T) {
	for name, test := range map[string]struct {
		values string
		want   string
	}{
		"an argument that is none":        {`{extraArgs: [leader-elect]}`, "/extraArgs/0"},
		"a variable that is a number":     {`{extraEnv: [{name: A, value: 1}]}`, "/extraEnv/0/value"},
		"a variable without a name":       {`{extraEnv: [{value: "1"}]}`, "/extraEnv/0"},
		"a volume without a source":       {`{extraVolumes: [{name: a}]}`, "/extraVolumes/0"},
		"a mount of a misspelt key":       {`{extraVolumeMounts: [{name: a, path: /b}]}`, "/extraVolumeMounts/0"},
		"a label that is a boolean":       {`{podLabels: {a: true}}`, "/podLabels/a"},
		"an annotation that is a number":  {`{podAnnotations: {a: 1}}`, "/podAnnotations/a"},
		"a node's label that is a number": {`{nodeSelector: {zone: 1}}`, "/nodeSelector/zone"},
		"a toleration of an effect":       {`{tolerations: [{effect: NoShedule}]}`, "/tolerations/0/effect"},
		"a constraint without a key":      {`{topologySpreadConstraints: [{maxSkew: 1, whenUnsatisfiable: DoNotSchedule}]}`, "/topologySpreadConstraints/0"},
		"a budget of a word":              {`{podDisruptionBudget: {maxUnavailable: some}}`, "/podDisruptionBudget/maxUnavailable"},
		"a pull secret that is a name":    {`{imagePullSecrets: [registry]}`, "/imagePullSecrets/0"},
		"a global one likewise":           {`{global: {imagePullSecrets: [registry]}}`, "/global/imagePullSecrets/0"},
		"a digest that is a tag":          {`{image: {digest: v1}}`, "/image/digest"},
		"a repository with a tag":         {`{image: {repository: "ghcr.io/pelotech/ot-agent@sha256:1"}}`, "/image/repository"},
		"a limit in bulk":                 {`{resources: {limit: {memory: 1Gi}}}`, "/resources"},
		"an affinity to volumes":          {`{affinity: {volumeAffinity: {}}}`, "/affinity"},
		"a memory that is a list":         {`{resources: {limits: {memory: []}}}`, "/resources/limits/memory"},
		"a port beyond all":               {`{networkPolicy: {egress: {ports: [70000]}}}`, "/networkPolicy/egress/ports/0"},
		"a reader of no kind":             {`{metrics: {readers: [{name: prometheus}]}}`, "/metrics/readers/0"},
		"an object that is a number":      {`{extraObjects: [1]}`, "/extraObjects/0"},
		"replicas in words":               {`{replicas: two}`, "/replicas"},
		"fewer than none":                 {`{replicas: -1}`, "/replicas"},
		"an interval without a unit":      {`{metrics: {serviceMonitor: {interval: "30"}}}`, "/metrics/serviceMonitor/interval"},
		"a namespace with capitals":       {`{policy: {namespace: Policies}}`, "/policy/namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			values := map[string]any{}
			require.NoError(t, yaml.Unmarshal([]byte(test.values), &values))
			_, err := chart.Render(t.Context(), agentChart, "agent", "ot-system", values)
			require.ErrorContains(t, err, "at '"+test.want)
		})
	}
}

// TestEveryValueIsDocumented wants a comment for each value, from which the page is generated.
func TestEveryValueIsDocumented(t *testing.T) {
	for name, path := range chartPaths {
		text, err := os.ReadFile(filepath.Join("..", "..", "..", path, "README.md"))
		require.NoError(t, err)
		rows := 0
		for _, line := range strings.Split(string(text), "\n") {
			if cells := strings.Split(line, "|"); len(cells) > 5 && strings.HasPrefix(line, "| ") {
				rows++
				assert.NotEmpty(t, strings.TrimSpace(cells[4]), "%s: %s", name, line)
			}
		}
		assert.Greater(t, rows, 40, name)
	}
}

// TestChartsShareTheirValues wants values that both charts have to be defined alike.
func TestChartsShareTheirValues(t *testing.T) {
	definitions := map[string]any{}
	for name, path := range chartPaths {
		for key, definition := range readChartFile(t, path, "values.schema.json")["$defs"].(map[string]any) {
			text, err := json.Marshal(definition)
			require.NoError(t, err)
			if before, ok := definitions[key]; ok {
				assert.Equal(t, before, string(text), "%s: %s", name, key)
			}
			definitions[key] = string(text)
		}
	}
}

const allValuesDir = "e2e/suites/chart/everything"

// loadAllValues returns values that enable everything a chart can render, but valuesLeftUnset.
func loadAllValues(t *testing.T, name string) map[string]any {
	t.Helper()
	values := readChartFile(t, allValuesDir, "both.yaml")
	mergeValues(t, values, readChartFile(t, allValuesDir, name+".yaml"))
	return values
}

// mergeValues adds values as helm does. None may replace one that is there.
func mergeValues(t *testing.T, into, from map[string]any) {
	t.Helper()
	for key, value := range from {
		section, isSection := value.(map[string]any)
		if before, found := into[key].(map[string]any); found && isSection {
			mergeValues(t, before, section)
			continue
		}
		require.NotContains(t, into, key, "it would replace the values of both charts")
		into[key] = value
	}
}

// valuesLeftUnset has the values that loadAllValues leaves empty or off, and why.
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

// TestAllValuesSetEverySwitch wants every value that is empty or off in values.yaml to be set in
// loadAllValues, so that new switches are covered.
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

// isEmptyValue reports whether a value is empty or off.
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

// TestEveryTemplateRendersWithAllValues makes sure that the checks of rendered objects, here and
// in make lint-charts, cover every template.
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
				if relative != filepath.Join("templates", "requirements.yaml") { // it renders errors only
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

// TestAPIServerKnowsEveryRenderedField applies all rendered objects, including those of `helm
// test`, in a strict dry run.
func TestAPIServerKnowsEveryRenderedField(t *testing.T) {
	for name, path := range chartPaths {
		namespace := map[string]string{"ot-agent": agentNamespace, "ot-hub": hubNamespace}[name]
		values := loadAllValues(t, name)
		release := strings.TrimPrefix(name, "ot-")
		rendered, err := chart.RenderFor(t.Context(), serverConfig, path, release, namespace, values)
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

var helmCommandPattern = regexp.MustCompile(`(?m)^\s*(?:\$ )?helm ((?:--kube-context \S+ )?(?:install|upgrade)) ([^#` + "`" + `\n]*)`)

// TestHelmCommandsInDocs renders the charts with the arguments and files of every helm install
// and upgrade in the pages.
func TestHelmCommandsInDocs(t *testing.T) {
	programs, err := binaries.Ensure(t.Context(), binaries.Helm)
	require.NoError(t, err)
	directory := t.TempDir()
	top, err := filepath.Abs(filepath.Join("..", "..", ".."))
	require.NoError(t, err)
	require.NoError(t, os.Symlink(filepath.Join(top, "charts"), filepath.Join(directory, "charts")))
	for name, text := range map[string]string{
		"join.kubeconfig": "apiVersion: v1\nkind: Config\nclusters: [{name: hub, cluster: {server: https://hub.example}}]\n",
		"hub-ca.crt":      "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600))
	}
	for page, atLeast := range map[string]int{
		"README.md": 1, "docs/operate/install.md": 2, "docs/operate/upgrade.md": 2, "docs/operate/members.md": 2, "docs/dashboard.md": 1,
		"charts/ot-agent/README.md": 3, "charts/ot-hub/README.md": 1,
	} {
		text, err := os.ReadFile(filepath.Join(top, page))
		require.NoError(t, err)
		commands := helmCommandPattern.FindAllStringSubmatch(string(text), -1)
		assert.GreaterOrEqual(t, len(commands), atLeast, page)
		for _, command := range commands {
			// helm template has no release to reuse values from, and no cluster.
			args := strings.Fields(strings.ReplaceAll(strings.ReplaceAll(command[2], "<version>", "v1.2.3"), "--reset-then-reuse-values", ""))
			cmd := exec.CommandContext(t.Context(), programs[binaries.Helm], append([]string{"template", "--kube-version", chart.KubeVersion}, args...)...)
			cmd.Dir = directory
			output, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s: helm %s %s\n%.2000s", page, command[1], command[2], output)
			assert.Contains(t, string(output), "kind: Deployment")
		}
	}
}
