package helm

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/charts"
)

func loadTestChart(t *testing.T, version string) *Chart {
	t.Helper()
	c, err := LoadChart(charts.Agent, "ot-agent", version)
	require.NoError(t, err)
	return c
}

func TestChartHasVersionOfHub(t *testing.T) {
	for version, want := range map[string]string{
		"v0.3.0": "0.3.0", "v0.3.0-4-gabcdef0-dirty": "0.3.0-4-gabcdef0-dirty", "dev": "0.2.0", "abcdef0": "0.2.0",
	} {
		c := loadTestChart(t, version)
		loaded, err := c.loadCopy()
		require.NoError(t, err)
		assert.Equal(t, version, loaded.Metadata.AppVersion)
		assert.Equal(t, want, loaded.Metadata.Version, version)
		assert.Equal(t, "0.2.0", c.SourceVersion())
		for _, file := range loaded.Raw {
			assert.NotRegexp(t, "^(runbooks|tests)/", file.Name, "what .helmignore names stays out")
		}
		assert.NotEmpty(t, loaded.Templates)
	}
}

func TestValuesAreMerged(t *testing.T) {
	c := loadTestChart(t, "v0.3.0")
	values := func(texts ...string) *Values {
		var layers []ValuesLayer
		for _, text := range texts {
			layers = append(layers, ValuesLayer{"here", text})
		}
		v, err := c.MergeValues(layers...)
		require.NoError(t, err)
		return v
	}
	assert.Equal(t, "v0.3.0", values().Version)
	assert.Equal(t, "v0.2.9", values("image: {tag: v0.2.9}").Version)
	merged := values("replicas: 3\nimage: {repository: a.example/b}", "image: {tag: x}")
	assert.Equal(t, map[string]any{"replicas": float64(3), "image": map[string]any{"repository": "a.example/b", "tag": "x"}}, merged.merged)
	assert.Equal(t, values("replicas: 3").Revision, values("replicas: 2", "# the last one wins\nreplicas: 3").Revision)
	seen := map[string]bool{}
	for _, v := range []*Values{values(), values("replicas: 3"), values("replicas: 4")} {
		seen[v.Revision] = true
	}
	other, err := loadTestChart(t, "v0.3.1").MergeValues()
	require.NoError(t, err)
	seen[other.Revision] = true
	assert.Len(t, seen, 4, "each of chart, version and values makes another release")

	for text, says := range map[string]string{
		"replicas: [": "here is no YAML of values", "replicas: many": "replicas", "replicaz: 3": "replicaz", "- a list": "here is no YAML of values",
	} {
		_, err := c.MergeValues(ValuesLayer{"here", text})
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, "here")
	}
}
