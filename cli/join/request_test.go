package join

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseLabels(t *testing.T) {
	for given, want := range map[string]string{"edge=true": "", "edge=": "", "fleet.example/ring=canary": "",
		"edge": `"edge" is none`, "=a": "is none", "edge=a,b=c": "is none", "-a=b": "is none", "a/b/c=d": "is none",
		"pelotech.ot/member=a": "is the hub's own", "pelotech.ot/discovered=": "is the hub's own",
	} {
		_, err := ParseLabels([]string{given})
		if want == "" {
			require.NoError(t, err, given)
		} else {
			require.ErrorContains(t, err, want, given)
		}
	}
	labels, err := ParseLabels([]string{"edge=true", "ring=a", "edge=false"})
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"edge": "false", "ring": "a"}, labels, "the last value counts")
}

func TestParseTimeout(t *testing.T) {
	for given, want := range map[string]time.Duration{"300": 5 * time.Minute, "1": time.Second, "90s": 90 * time.Second, "2h": 2 * time.Hour} {
		got, err := ParseTimeout(given)
		require.NoError(t, err, given)
		assert.Equal(t, want, got)
	}
	for _, given := range []string{"", "soon", "0", "-1", "-5m", "0s", "99999999999999999999"} {
		_, err := ParseTimeout(given)
		require.ErrorContains(t, err, "--timeout is a number of seconds", given)
	}
}

func TestArgumentsThatDoNotGoTogether(t *testing.T) {
	for want, r := range map[string]Request{
		"push needs --member":                         {Mode: Push, Name: "oslo"},
		"pull with --member installs the agent":       {Mode: Pull, Name: "oslo", MemberContext: "oslo"},
		"what follows -- is for helm, which needs":    {Mode: Pull, Name: "oslo", Install: true},
		"the cluster's name on the hub":               {Mode: Pull, Name: "Oslo"},
		"of a-z, 0-9 and -: \"\" is none":             {Mode: Pull},
		"--server is the URL":                         {Mode: Push, Name: "oslo", MemberContext: "oslo", Server: "https://a\"b"},
		"at most 53 characters of a-z, 0-9 and -: \"": {Mode: Pull, Name: "a123456789b123456789c123456789d123456789e123456789f1234"},
	} {
		require.ErrorContains(t, r.Validate(), want)
	}
	require.NoError(t, Request{Mode: Push, Name: "oslo", MemberContext: "oslo"}.Validate())
	require.NoError(t, Request{Mode: Pull, Name: "oslo"}.Validate())
	require.NoError(t, Request{Mode: Pull, Name: "oslo", MemberContext: "oslo", Install: true}.Validate())
}

func TestKubeconfigForTheHub(t *testing.T) {
	access := Access{Server: "https://frankfurt.example:6443", TLSServerName: "kubernetes", Authority: []byte("a CA")}
	text, err := access.Kubeconfig("a-token")
	require.NoError(t, err)
	assert.True(t, access.Reaches(text))
	// As earlier versions wrote it.
	byScript := `
apiVersion: v1
kind: Config
current-context: member
contexts: [{name: member, context: {cluster: member, user: hub}}]
clusters:
  - name: member
    cluster:
      server: "https://frankfurt.example:6443"
      certificate-authority-data: YSBDQQ==
      tls-server-name: "kubernetes"
users: [{name: hub, user: {token: other}}]`
	assert.True(t, access.Reaches([]byte(byScript)))
	for what, other := range map[string]Access{
		"another server":      {Server: "https://other.example", TLSServerName: access.TLSServerName, Authority: access.Authority},
		"another name":        {Server: access.Server, Authority: access.Authority},
		"another certificate": {Server: access.Server, TLSServerName: access.TLSServerName, Authority: []byte("another")},
	} {
		assert.False(t, other.Reaches(text), what)
	}
	withoutToken, err := access.Kubeconfig("")
	require.NoError(t, err)
	for what, kubeconfig := range map[string][]byte{"nothing": nil, "no token": withoutToken, "nonsense": []byte("\t{"), "no context": []byte("apiVersion: v1\nkind: Config\n")} {
		assert.False(t, access.Reaches(kubeconfig), what)
	}
	assert.True(t, Access{Server: "https://127.0.0.1:6443"}.IsLocal())
	assert.True(t, Access{Server: "https://[::1]:6443"}.IsLocal())
	assert.False(t, access.IsLocal())
}
