package connect_test

import (
	"os"
	"path/filepath"
	"strings"
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

// clientcmd takes localhost:8080 for a server where nothing names one.
func TestWithoutKubeconfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	connectBy := func(text, server string) error {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		t.Setenv("KUBECONFIG", path)
		f := connect.NewFlags()
		*f.APIServer = server
		_, err := f.ConnectHub()
		return err
	}
	const empty = "apiVersion: v1\nkind: Config\n"
	require.EqualError(t, connectBy(empty, ""), "there is no kubeconfig: set KUBECONFIG or --kubeconfig")
	require.ErrorContains(t, connectBy(strings.Replace(kubeconfig, "current-context: bergen", "", 1), ""), "the kubeconfig has no current context: name one with --context")
	require.NoError(t, connectBy(empty, "http://localhost:8080"), "a proxy that is named")
	require.NoError(t, connectBy(kubeconfig, ""))

	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	_, err := connect.NewFlags().ConnectHub()
	require.EqualError(t, err, "there is no kubeconfig: set KUBECONFIG or --kubeconfig")
	_, err = connect.NewFlags().ConnectMember("")
	require.EqualError(t, err, "there is no kubeconfig: set KUBECONFIG or --kubeconfig")
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
