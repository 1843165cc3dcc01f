package compatibility_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/compatibility"
)

func TestDistanceOf(t *testing.T) {
	for name, tt := range map[string]struct {
		agent, hub string
		want       compatibility.Distance
	}{
		"the same":                  {"v1.2.0", "v1.2.9", compatibility.Supported},
		"one older":                 {"1.1.0", "v1.2.0", compatibility.Supported},
		"one newer":                 {"v1.3.0", "v1.2.0", compatibility.Supported},
		"two older":                 {"v1.0.9", "v1.2.0", compatibility.TooOld},
		"two newer":                 {"v1.4.0", "v1.2.0", compatibility.TooNew},
		"a major version older":     {"v1.2.0", "v2.2.0", compatibility.TooOld},
		"a major version newer":     {"v2.2.0", "v1.2.0", compatibility.TooNew},
		"after a release, as built": {"v1.2.3-4-gabcdef0-dirty", "v1.2.0", compatibility.Supported},
		"the agent is no release":   {"dev", "v1.2.0", compatibility.Unknown},
		"the hub is no release":     {"v1.2.0", "", compatibility.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, compatibility.DistanceOf(tt.agent, tt.hub))
		})
	}
}

func TestMinorOf(t *testing.T) {
	assert.Equal(t, "1.36", compatibility.MinorOf("v1.36.3-eks-1a2b"))
	assert.Equal(t, "1.30", compatibility.MinorOf("1.30+"))
	assert.Empty(t, compatibility.MinorOf("dev"))
	assert.True(t, compatibility.IsOlder("1.9", "1.30"))
	assert.False(t, compatibility.IsOlder("1.30", "1.30"))
	assert.False(t, compatibility.IsOlder("", "1.30"))
}

// The charts refuse what doctor refuses.
func TestChartsRequireMinKubernetes(t *testing.T) {
	for _, chart := range []string{"ot-agent", "ot-hub"} {
		text, err := os.ReadFile("../../charts/" + chart + "/Chart.yaml")
		require.NoError(t, err)
		var metadata struct{ KubeVersion string }
		require.NoError(t, yaml.Unmarshal(text, &metadata))
		assert.Equal(t, ">="+compatibility.MinKubernetes+".0-0", metadata.KubeVersion, chart)
	}
}
