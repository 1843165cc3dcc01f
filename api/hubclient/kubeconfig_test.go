package hubclient

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/transport"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
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
		"no kubeconfig":    {[]byte("hello"), "it is no YAML mapping"},
		"a list":           {[]byte(`["a"]`), "it is no YAML mapping"},
		"comments only":    {[]byte("# later\n"), "it is empty or has comments only"},
		"encoded twice":    {fmt.Appendf(nil, "%s\n", base64.StdEncoding.EncodeToString(text(cluster, user))), "base64 twice"},
		"encoded in lines": {[]byte(wrapLines(base64.StdEncoding.EncodeToString(text(cluster, user)))), "base64 twice"},
		"its Secret":       {[]byte(`{"apiVersion": "v1", "kind": "Secret", "data": {}}`), "its kind is not Config"},
		"no context":       {[]byte(`{"apiVersion": "v1", "kind": "Config"}`), "no current-context"},
		"no server":        {text(`{}`, user), "has no server"},
		"CA file":          {text(`{"server": "x", "certificate-authority": "/ca"}`, user), "names a file"},
		"bad CA":           {text(`{"server": "https://x", "certificate-authority-data": "eA=="}`, user), "certificate"},
		"exec":             {text(cluster, `{"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "interactiveMode": "Never"}}`), "needs a program"},
		"auth provider":    {text(cluster, `{"auth-provider": {"name": "gcp"}}`), "needs a program"},
		"token file":       {text(cluster, `{"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}`), "names a file"},
		"not verified":     {text(`{"server": "https://x", "insecure-skip-tls-verify": true}`, user), "set spec.insecureSkipTLSVerify of the MemberCluster"},
		"no TLS":           {text(`{"server": "http://x"}`, user), "not an https URL"},
		"no TLS, implied":  {text(`{"server": "x:80"}`, user), "not an https URL"},
		"metadata service": {text(`{"server": "https://169.254.169.254"}`, user), "metadata service"},
		"mapped address":   {text(`{"server": "https://[::ffff:169.254.169.254]:443"}`, user), "metadata service"},
		"NAT64 address":    {text(`{"server": "https://[64:ff9b::a9fe:a9fe]"}`, user), "metadata service"},
		"IPv6 metadata":    {text(`{"server": "https://[fd00:ec2::254]"}`, user), "metadata service"},
		"proxy to that":    {text(`{"server": "https://x", "proxy-url": "http://169.254.169.254:80"}`, user), "metadata service"},
		"proxy of a file":  {text(`{"server": "https://x", "proxy-url": "file:///etc/passwd"}`, user), "proxy-url is not"},
		"as a user":        {text(cluster, `{"token": "t", "as": "somebody"}`), "impersonates another"},
		"as a group":       {text(cluster, `{"token": "t", "as-groups": ["system:masters"]}`), "impersonates another"},
		"as a UID":         {text(cluster, `{"token": "t", "as-uid": "u"}`), "impersonates another"},
		"with extras":      {text(cluster, `{"token": "t", "as-user-extra": {"a": ["b"]}}`), "impersonates another"},
		"too large":        {text(cluster, `{"token": "`+strings.Repeat("t", maxKubeconfigBytes)+`"}`), "larger than 512 KiB"},
		"certificate file": {text(cluster, `{"client-certificate": "/a", "client-key": "/b"}`), "names a file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := ParseKubeconfig(tt.text)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

// wrapLines breaks base64 as base64(1) does.
func wrapLines(encoded string) string {
	var lines []string
	for line := range slices.Chunk([]byte(encoded), 76) {
		lines = append(lines, string(line))
	}
	return strings.Join(lines, "\n")
}

func TestMemberClusterAllowsInsecureKubeconfig(t *testing.T) {
	text := []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": "https://member:6443", "insecure-skip-tls-verify": true}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "me"}}],
		"users": [{"name": "me", "user": {"token": "t"}}]}`)
	member := &v1alpha1.MemberCluster{}
	_, _, err := ParseMemberKubeconfig(member, text)
	require.ErrorContains(t, err, "has insecure-skip-tls-verify")
	member.Spec.InsecureSkipTLSVerify = true
	cfg, _, err := ParseMemberKubeconfig(member, text)
	require.NoError(t, err)
	require.True(t, cfg.Insecure)
	_, _, err = ParseMemberKubeconfig(member, bytes.Replace(text, []byte("https:"), []byte("http:"), 1))
	require.ErrorContains(t, err, "not an https URL", "it allows nothing else")
}

// Ten thousand aliases of a value of 100 KiB take a gigabyte if they are followed.
func TestKubeconfigWithAliasesIsNotExpanded(t *testing.T) {
	text := []byte("apiVersion: v1\nkind: Config\nx: &a " + strings.Repeat("x", 100_000) + "\ny: [" + strings.Repeat("*a, ", 10_000) + "*a]\n")
	var err error
	allocated := allocatedBy(func() { _, err = LoadKubeconfig(text) })
	require.ErrorContains(t, err, "YAML alias")
	require.Less(t, allocated, int64(100*len(text)))
	// clientcmd does not read on where the first document ends.
	text = append(text, "...\n\""...)
	allocated = allocatedBy(func() { _, err = LoadKubeconfig(text) })
	require.ErrorContains(t, err, "it is not a kubeconfig")
	require.Less(t, allocated, int64(100*len(text)))
	_, err = LoadKubeconfig([]byte("apiVersion: v1\nkind: Config\n# *a\nx: \"*a\"\n"))
	require.NoError(t, err, "a star in a text is no alias")
}

// Names are judged after they are resolved.
func TestForbiddenAddressesAreNotDialled(t *testing.T) {
	through, done, err := newTransport(&rest.Config{}, time.Second, transport.Mailbox, nil)
	require.NoError(t, err)
	defer done()
	for _, address := range []string{"169.254.169.254:443", "[fe80::1]:443", "[::ffff:169.254.169.254]:443", "100.100.100.200:443", "0.0.0.0:443"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address, nil)
		require.NoError(t, err)
		response, err := through.RoundTrip(request)
		if err == nil {
			_ = response.Body.Close()
		}
		require.ErrorIs(t, err, errForbiddenAddress, address)
	}
}

// Whatever a kubeconfig says: one that is accepted leads to a verified server, and takes
// nothing of the hub's.
func FuzzAcceptedKubeconfig(f *testing.F) {
	f.Add([]byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": "https://m"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "me"}}], "users": [{"name": "me", "user": {"token": "t"}}]}`))
	f.Add([]byte("apiVersion: v1\nkind: Config\nx: &a b\ny: *a\n...\n\""))
	f.Fuzz(func(t *testing.T, text []byte) {
		cfg, version, err := ParseKubeconfig(text)
		if err != nil {
			require.Nil(t, cfg)
			require.Less(t, len(err.Error()), 512, "it goes into a condition")
			return
		}
		require.NotEmpty(t, version)
		server, _, err := rest.DefaultServerUrlFor(cfg)
		require.NoError(t, err)
		require.Equal(t, "https", server.Scheme)
		require.False(t, cfg.Insecure)
		require.Empty(t, cfg.CAFile+cfg.CertFile+cfg.KeyFile+cfg.BearerTokenFile)
		require.Equal(t, rest.ImpersonationConfig{}, cfg.Impersonate)
		require.Nil(t, cfg.ExecProvider)
		require.Nil(t, cfg.AuthProvider)
		_, done, err := newTransport(cfg, time.Second, transport.Mailbox, nil)
		require.NoError(t, err)
		done()
	})
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
