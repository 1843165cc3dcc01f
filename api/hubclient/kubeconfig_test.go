package hubclient

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/registration"
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
		"no server":        {text(`{}`, user), "has no server"},
		"CA file":          {text(`{"server": "x", "certificate-authority": "/ca"}`, user), "names a file"},
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

// Whatever is broken: no error shows what the kubeconfig says.
func TestErrorsAboutAKubeconfigDoNotQuoteIt(t *testing.T) {
	const whole = `apiVersion: v1
kind: Config
current-context: c
clusters:
- name: c
  cluster: {server: "https://member:6443", certificate-authority-data: "", proxy-url: "http://proxy:3128"}
contexts:
- name: c
  context: {cluster: c, user: me}
users:
- name: me
  user: {token: t, client-certificate-data: "", client-key-data: ""}
`
	const secret = "S3CR3T"
	_, _, err := ParseKubeconfig([]byte(whole))
	require.NoError(t, err)
	failed := 0
	try := func(text string) {
		for _, parse := range []func([]byte) error{
			func(b []byte) error { _, _, err := ParseKubeconfig(b); return err },
			func(b []byte) error { _, err := LoadKubeconfig(b); return err },
			func(b []byte) error { _, err := registration.ParseHubAccess(b); return err },
		} {
			if err := parse([]byte(text)); err != nil {
				failed++
				require.NotContains(t, err.Error(), secret, "%s", text)
				require.NotContains(t, err.Error(), "UzNDUjNU", "%s", text)
			}
		}
	}
	// The secret, in forms that parsers reject, at and instead of each part of the text.
	parts := regexp.MustCompile(`[^\s":{}\[\],]+|""`).FindAllStringIndex(whole, -1)
	for _, form := range []string{secret, `"` + secret, "\t" + secret, "*" + secret, "!" + secret, `{"` + secret + `": 1}`, "[" + secret + "]", secret + ": " + secret, `"https://user:` + secret + `@h:%zz"`, "UzNDUjNU", "\x00" + secret, "\xff" + secret, "&a [*a, *" + secret + "]"} {
		for _, at := range parts {
			try(whole[:at[0]] + form + whole[at[1]:])
			try(whole[:at[0]] + form)
			try(whole[:at[1]] + form + whole[at[1]:])
		}
	}
	require.Greater(t, failed, len(parts), "the forms are rejected")
}

func FuzzParseKubeconfig(f *testing.F) {
	f.Add([]byte("kind: Config"), []byte("users: ["))
	f.Add([]byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "`), []byte(`"}`))
	f.Fuzz(func(t *testing.T, before, after []byte) {
		const secret = "S3CR3T"
		if bytes.Contains(before, []byte("S3C")) || bytes.Contains(after, []byte("S3C")) {
			t.Skip()
		}
		if _, _, err := ParseKubeconfig(slices.Concat(before, []byte(secret), after)); err != nil && strings.Contains(err.Error(), secret) {
			t.Fatalf("the error quotes the kubeconfig: %v", err)
		}
	})
}
