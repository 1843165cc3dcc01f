package connect_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/cli/connect"
)

// newFlags returns the flags of a command line. The current context is bergen, whose hub is hub.
func newFlags(t *testing.T, args ...string) *connect.Flags {
	path := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(path, []byte(kubeconfig+"- name: bert\n  user: {token: u}\n"), 0o600))
	f := connect.NewFlags()
	flags := pflag.NewFlagSet("kubectl ot", pflag.ContinueOnError)
	f.AddFlags(flags)
	require.NoError(t, flags.Parse(append(args, "--kubeconfig", path)))
	return f
}

// What is given on the command line is for the hub, whatever the current context is.
func TestCredentialsAreTheHubs(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want func(*rest.Config)
	}{
		"token of the kubeconfig": {want: func(c *rest.Config) { c.BearerToken = "t" }},
		"token":                   {args: []string{"--token", "given"}, want: func(c *rest.Config) { c.BearerToken = "given" }},
		"user":                    {args: []string{"--user", "bert"}, want: func(c *rest.Config) { c.BearerToken = "u" }},
		"client certificate": {args: []string{"--client-certificate", os.DevNull, "--client-key", os.DevNull}, want: func(c *rest.Config) {
			c.BearerToken, c.CertFile, c.KeyFile = "t", os.DevNull, os.DevNull
		}},
		"server": {args: []string{"--server", "https://other.example.com", "--tls-server-name", "hub"}, want: func(c *rest.Config) {
			c.BearerToken, c.Host, c.ServerName = "t", "https://other.example.com", "hub"
		}},
		"insecure": {args: []string{"--insecure-skip-tls-verify"}, want: func(c *rest.Config) { c.BearerToken, c.Insecure = "t", true }},
	} {
		for context, args := range map[string][]string{"another context": nil, "the current context": {"--context", "hub"}} {
			t.Run(name+" of "+context, func(t *testing.T) {
				want := &rest.Config{Host: "https://hub.example.com"}
				test.want(want)
				hub, err := newFlags(t, append(args, test.args...)...).ConnectHub()
				require.NoError(t, err)
				c := hub.Config
				assert.Equal(t, "hub", hub.Context)
				assert.Equal(t, want, &rest.Config{Host: c.Host, BearerToken: c.BearerToken, TLSClientConfig: rest.TLSClientConfig{
					CertFile: c.CertFile, KeyFile: c.KeyFile, ServerName: c.ServerName, Insecure: c.Insecure,
				}})
			})
		}
	}
}

// A member never gets what is the hub's: its agent's administrators could use it there.
func TestCredentialsOfTheHubGoToNoMember(t *testing.T) {
	for name, test := range map[string]struct {
		args      []string
		askHub    bool
		wantToken string
		wantError string
	}{
		"the kubeconfig's":                       {wantToken: "t"},
		"of the current context":                 {args: []string{"--token", "given"}, wantError: "--token applies to the hub (context hub), and this command reads context bergen: set the credential in the kubeconfig"},
		"of another context":                     {args: []string{"--user", "bert", "--token", "given", "--member-context", "alone"}, wantError: "--token, --user applies to the hub (context hub), and this command reads context alone"},
		"of the current context, beside the hub": {args: []string{"--token", "given"}, askHub: true, wantToken: "t"},
		"of another context, beside the hub":     {args: []string{"--token", "given", "--member-context", "alone"}, askHub: true, wantToken: "t"},
		"the hub's server, beside the hub":       {args: []string{"--server", "https://hub2.example.com"}, askHub: true, wantToken: "t"},
		"that is the hub":                        {args: []string{"--token", "given", "--hub", "bergen"}, wantToken: "given"},
		"without a hub":                          {args: []string{"--token", "given", "--context", "alone"}, wantToken: "given"},
		"as somebody else":                       {args: []string{"--as", "anna", "--member-context", "alone"}, wantToken: "t"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFlags(t, test.args...)
			if test.askHub {
				_, err := f.ConnectHub()
				require.NoError(t, err)
			}
			member, err := f.ConnectMember("")
			if test.wantError != "" {
				require.ErrorContains(t, err, test.wantError)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.wantToken, member.Config.BearerToken)
			assert.Equal(t, "https://bergen.example.com", member.Config.Host)
			assert.Equal(t, *f.Impersonate, member.Config.Impersonate.UserName)
		})
	}
}
