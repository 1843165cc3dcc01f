package chart_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/e2e/harness/chart"
)

// openValueObjects are the objects of values that may hold what their schema does not name: what
// other charts share, maps of names, and what the API server checks.
var openValueObjects = []string{"/global", "/policy/data"}

// podValueObjects are values that are what a Pod has by that name: values.yaml does not show
// all of it.
var podValueObjects = []string{"/affinity", "/resources"}

// chartPaths by their names.
var chartPaths = map[string]string{"ot-agent": agentChart, "ot-hub": hubChart}

// readChartFile parses a file of a chart.
func readChartFile(t *testing.T, path, file string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", path, file))
	require.NoError(t, err)
	parsed := map[string]any{}
	require.NoError(t, yaml.Unmarshal(text, &parsed))
	return parsed
}

// valuesSchema of a chart's values, with references resolved.
type valuesSchema struct{ root map[string]any }

func (s valuesSchema) resolve(t *testing.T, node any) map[string]any {
	t.Helper()
	found := node.(map[string]any)
	if ref, ok := found["$ref"].(string); ok {
		found = s.root["$defs"].(map[string]any)[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
	}
	return found
}

// walkObjects visits every object that a schema gives properties, and every leaf.
func (s valuesSchema) walkObjects(t *testing.T, path string, node any, values any, visit func(path string, node map[string]any, value any)) {
	t.Helper()
	resolved := s.resolve(t, node)
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

// What can be set is what values.yaml shows and the schema knows: neither is of an
// earlier day than the other.
func TestValuesMatchTheirSchema(t *testing.T) {
	for name, path := range chartPaths {
		t.Run(name, func(t *testing.T) {
			values, known := readChartFile(t, path, "values.yaml"), valuesSchema{readChartFile(t, path, "values.schema.json")}
			known.walkObjects(t, "", known.root, values, func(path string, node map[string]any, value any) {
				properties, _ := node["properties"].(map[string]any)
				if len(properties) == 0 || slices.Contains(podValueObjects, path) {
					assert.NotNil(t, value, "the schema knows %s, values.yaml does not show it", path)
					return
				}
				shown, ok := value.(map[string]any)
				require.True(t, ok, "%s is an object in the schema, not in values.yaml", path)
				for key := range shown {
					assert.Contains(t, properties, key, "values.yaml has %s/%s, the schema does not know it", path, key)
				}
				if !slices.Contains(openValueObjects, path) {
					assert.Equal(t, false, node["additionalProperties"], "%s takes keys that nothing reads", path)
				}
			})
		})
	}
}

// Every key that nothing reads is refused, and all of them are named at once.
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

// Every value of a wrong type is refused, and all of them are named at once.
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

// What stands in lists and maps is looked at, too.
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

// The page of a chart, which is generated from it, tells what each value is for.
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

// The two charts are set alike wherever they have the same to set.
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
