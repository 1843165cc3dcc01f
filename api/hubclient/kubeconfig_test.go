package hubclient

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseKubeconfig(t *testing.T) {
	const cluster, user = `{"server": "https://member:6443"}`, `{"token": "t"}`
	text := func(cluster, user string) []byte {
		return fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
			"clusters": [{"name": "c", "cluster": %s}, {"name": "unused", "cluster": {"server": "x", "certificate-authority": "/etc/passwd"}}],
			"contexts": [{"name": "c", "context": {"cluster": "c", "user": "me"}}],
			"users": [{"name": "me", "user": %s}]}`, cluster, user)
	}
	cfg, version, err := ParseKubeconfig(text(cluster, user))
	require.NoError(t, err, "what another context uses is ignored")
	require.Equal(t, "https://member:6443", cfg.Host)
	require.Equal(t, "t", cfg.BearerToken)

	_, again, err := ParseKubeconfig(text(cluster, `{"token": "another"}`))
	require.NoError(t, err)
	require.Equal(t, version, again, "a token makes no other version")
	for _, other := range [][]byte{
		text(`{"server": "https://member:443"}`, user),
		text(`{"server": "https://member:6443", "proxy-url": "http://proxy"}`, user),
		text(`{"server": "https://member:6443", "tls-server-name": "x"}`, user),
		text(cluster, `{"username": "me", "password": "secret"}`),
		text(cluster, `{"token": "t", "as": "somebody"}`),
	} {
		_, differs, err := ParseKubeconfig(other)
		require.NoError(t, err)
		require.NotEqual(t, version, differs, "%s", other)
	}

	for name, tt := range map[string]struct {
		text []byte
		want string
	}{
		"empty":            {nil, "it is empty"},
		"no kubeconfig":    {[]byte("hello"), "reading the kubeconfig"},
		"no context":       {[]byte(`{"apiVersion": "v1", "kind": "Config"}`), "no current-context"},
		"no server":        {text(`{}`, user), `cluster "c" has no server`},
		"CA file":          {text(`{"server": "x", "certificate-authority": "/ca"}`, user), `cluster "c" names a file`},
		"bad CA":           {text(`{"server": "https://x", "certificate-authority-data": "eA=="}`, user), "certificate"},
		"exec":             {text(cluster, `{"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "interactiveMode": "Never"}}`), "needs a program"},
		"auth provider":    {text(cluster, `{"auth-provider": {"name": "gcp"}}`), "needs a program"},
		"token file":       {text(cluster, `{"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}`), "names a file"},
		"certificate file": {text(cluster, `{"client-certificate": "/a", "client-key": "/b"}`), "names a file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := ParseKubeconfig(tt.text)
			require.ErrorContains(t, err, tt.want)
		})
	}
}
