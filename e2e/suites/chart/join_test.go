package chart_test

import (
	"encoding/base64"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/e2e/harness/chart"
)

// What a hub has made for an agent that dials in is given to it by its installation.
func TestPullModeInstallation(t *testing.T) {
	rendered, _ := renderWorkload(t, "ot-agent", `{}`)
	assert.NotContains(t, rendered, "Secret ot-system/"+registration.JoinSecret)

	kubeconfig := "apiVersion: v1\nkind: Config\nclusters: [{name: hub, cluster: {server: https://hub.example}}]\n"
	objects, err := chart.Render(t.Context(), agentChart, "agent", "ot-system", map[string]any{"hub": map[string]any{"join": map[string]any{"kubeconfig": kubeconfig}}})
	require.NoError(t, err)
	given := ""
	for _, object := range objects {
		if object.GetKind() == "Secret" && object.GetName() == registration.JoinSecret {
			given = valueAt(t, object, "data", registration.KubeconfigKey).(string)
		}
	}
	text, err := base64.StdEncoding.DecodeString(given)
	require.NoError(t, err)
	assert.Equal(t, kubeconfig, string(text))

	_, err = chart.Render(t.Context(), agentChart, "agent", "ot-system", map[string]any{"hub": map[string]any{"join": map[string]any{"kubeconfig": "join.kubeconfig"}}})
	require.ErrorContains(t, err, "hub.join.kubeconfig is no kubeconfig: give the file that the hub has made by --set-file")
}
