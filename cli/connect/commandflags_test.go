package connect_test

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/cli/connect"
)

// Commands that are printed reach the cluster that the screen is about, whatever the kubeconfig's
// current context is where they are pasted.
func TestCommandFlags(t *testing.T) {
	t.Setenv("OT_HUB", "")
	path := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(path, []byte("apiVersion: v1\nkind: Config\ncurrent-context: staging\ncontexts:\n- {name: staging, context: {cluster: a}}\n- {name: prod, context: {cluster: b}}\nclusters:\n- {name: a, cluster: {server: 'https://a'}}\n- {name: b, cluster: {server: 'https://b'}}\n"), 0o600))
	for given, want := range map[string]struct{ ot, hub, member, every, ofHub string }{
		"":                           {},
		"-n farm":                    {},
		"--hub prod":                 {ot: "--hub prod", hub: "--context prod"},
		"--context prod":             {ot: "--context prod", hub: "--context prod"},
		"--hub-namespace fleet":      {ot: "--hub-namespace fleet"},
		"--kubeconfig " + path:       {ot: "--kubeconfig " + path, every: "--kubeconfig " + path},
		"--as anna --as-group leads": {ot: "--as anna --as-group leads", every: "--as anna --as-group leads"},
		"--server https://c --token secret --user u": {ot: "--user u --server https://c", hub: "--user u --server https://c"},
		"--hub prod --insecure-skip-tls-verify":      {ot: "--hub prod --insecure-skip-tls-verify", hub: "--context prod --insecure-skip-tls-verify"},
		"--read-api https://r":                       {ot: "--read-api https://r"},
		"--member-context lab":                       {member: "--context lab", ofHub: "--context staging"},
		"--member-context lab --hub prod":            {ot: "--hub prod", hub: "--context prod", member: "--context lab"},
	} {
		t.Setenv("KUBECONFIG", path)
		flags, set := connect.NewFlags(), pflag.NewFlagSet("", pflag.ContinueOnError)
		flags.AddFlags(set)
		require.NoError(t, set.Parse(strings.Fields(given)))
		hub, member, every := flags.KubectlFlags()
		assert.Equal(t, want.ot, strings.Join(flags.CommandFlags(), " "), given)
		assert.Equal(t, want.hub, strings.Join(hub, " "), given)
		assert.Equal(t, want.member, strings.Join(member, " "), given)
		assert.Equal(t, want.every, strings.Join(every, " "), given)
		ofHub := strings.TrimSpace(want.every + " " + cmp.Or(want.ofHub, want.hub))
		assert.Equal(t, strings.TrimSpace("kubectl "+ofHub), flags.HubKubectl(), given)
	}
}

// A member that was connected to is named, however it was: kubectl has no --cluster of the fleet.
func TestCommandsNameTheConnectedMember(t *testing.T) {
	t.Setenv("OT_HUB", "")
	path := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(path, []byte("apiVersion: v1\nkind: Config\ncurrent-context: staging\ncontexts:\n- {name: staging, context: {cluster: a}}\n- {name: lab, context: {cluster: b}}\nclusters:\n- {name: a, cluster: {server: 'https://a'}}\n- {name: b, cluster: {server: 'https://b'}}\n"), 0o600))
	t.Setenv("KUBECONFIG", path)
	for name, test := range map[string]struct {
		given, cluster, want string
	}{
		"by its cluster's name":   {cluster: "lab", want: "--context lab"},
		"by --context":            {given: "--context lab", want: "--context lab"},
		"by --member-context":     {given: "--member-context lab", cluster: "bergen", want: "--context lab"},
		"by the current context":  {},
		"and the current context": {cluster: "staging"},
	} {
		t.Run(name, func(t *testing.T) {
			flags, set := connect.NewFlags(), pflag.NewFlagSet("", pflag.ContinueOnError)
			flags.AddFlags(set)
			require.NoError(t, set.Parse(strings.Fields(test.given)))
			_, err := flags.ConnectMember(test.cluster)
			require.NoError(t, err)
			_, member, _ := flags.KubectlFlags()
			assert.Equal(t, test.want, strings.Join(member, " "))
		})
	}
}
