package connect_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/cli/connect"
)

const kubeconfig = `
apiVersion: v1
kind: Config
current-context: bergen
clusters:
- name: hub
  cluster: {server: "https://hub.example.com"}
- name: bergen
  cluster: {server: "https://bergen.example.com"}
contexts:
- name: hub
  context: {cluster: hub, user: anna, namespace: farm}
- name: bergen
  context:
    cluster: bergen
    user: anna
    extensions:
    - name: pelotech.ot/hub
      extension: hub
- name: alone
  context: {cluster: bergen, user: anna}
users:
- name: anna
  user: {token: t}
`

func TestHubContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(path, []byte(kubeconfig), 0o600))
	for name, test := range map[string]struct {
		hub, variable, current string
		wantContext            string
	}{
		"flag":                    {hub: "alone", variable: "hub", wantContext: "alone"},
		"variable":                {variable: "alone", wantContext: "alone"},
		"extension":               {wantContext: "hub"},
		"extension of --context":  {current: "alone", wantContext: "alone"},
		"the current one is used": {current: "hub", wantContext: "hub"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OT_HUB", test.variable)
			f := connect.NewFlags()
			*f.KubeConfig, *f.Context, f.Hub = path, test.current, test.hub
			context, err := f.HubContext()
			require.NoError(t, err)
			assert.Equal(t, test.wantContext, context)
			hub, err := f.ConnectHub()
			require.NoError(t, err)
			assert.Equal(t, test.wantContext, hub.Context)
		})
	}
}

func TestMemberContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(path, []byte(kubeconfig), 0o600))
	connectMember := func(given, cluster string) (string, string, error) {
		f := connect.NewFlags()
		*f.KubeConfig, f.Member = path, given
		m, err := f.ConnectMember(cluster)
		if err != nil {
			return "", "", err
		}
		return m.Context, m.Namespace, nil
	}
	context, namespace, err := connectMember("", "")
	require.NoError(t, err)
	assert.Equal(t, "bergen", context)
	assert.Equal(t, "default", namespace)
	context, namespace, err = connectMember("hub", "bergen")
	require.NoError(t, err)
	assert.Equal(t, "hub", context, "--member-context is more than the name of the cluster")
	assert.Equal(t, "farm", namespace)
	_, _, err = connectMember("", "kiel")
	require.ErrorContains(t, err, "name the cluster's with --member-context")
	_, _, err = connectMember("kiel", "")
	require.ErrorContains(t, err, "the kubeconfig has no context kiel")
}

func TestReadAPIKnowsNoImpersonation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(path, []byte(kubeconfig), 0o600))
	f := connect.NewFlags()
	*f.KubeConfig, *f.Impersonate = path, "root"
	hub, err := f.ConnectHub()
	require.NoError(t, err)
	_, err = f.OpenReadAPI(t.Context(), hub)
	require.ErrorIs(t, err, connect.ErrNoReadAPI)
	require.ErrorContains(t, err, "--as")
}
