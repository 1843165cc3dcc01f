package command

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pelotech/ot-fleet/cli/connect"
)

// A person who answers a question, or copies a command, knows which hub it is about.
func TestQuestionsAndMessagesNameTheHub(t *testing.T) {
	path := t.TempDir() + "/config"
	require.NoError(t, os.WriteFile(path, []byte("apiVersion: v1\nkind: Config\n"), 0o600))
	t.Setenv("KUBECONFIG", path)
	t.Setenv("OT_HUB", "")
	errOut := &bytes.Buffer{}
	e := &environment{Flags: connect.NewFlags(), checked: true, IOStreams: genericiooptions.IOStreams{In: strings.NewReader("y\n"), Out: &bytes.Buffer{}, ErrOut: errOut}}
	e.HubNamespace, e.Hub = connect.DefaultHubNamespace, "prod"
	agreed, err := e.askWhether("prod", "Approve?")
	require.NoError(t, err)
	assert.True(t, agreed)
	assert.Equal(t, "Context prod: Approve? [y/N] ", errOut.String())
	errOut.Reset()
	e.printNote("see kubectl ot prune status, and kubectl delete membercluster lab")
	assert.Equal(t, "see kubectl ot --hub prod prune status, and kubectl --context prod delete membercluster lab\n", errOut.String())
	assert.Equal(t, []string{"--hub", "prod"}, e.options().OT, "of screens and data")
	e.quiet = true
	agreed, err = e.askWhether("prod", "Approve?")
	require.EqualError(t, err, "cannot ask about what -q does not show: add -y, or leave out -q")
	assert.False(t, agreed)
}

func TestQuestionsNameTheServer(t *testing.T) {
	t.Setenv("KUBECONFIG", t.TempDir()+"/none")
	t.Setenv("OT_HUB", "")
	for _, test := range []struct{ context, hub, server, want string }{
		{context: "prod", hub: "prod", want: "Context prod"},
		{context: "prod", hub: "prod", server: "https://c:6443", want: "API server https://c:6443"},
		{context: "lab", hub: "prod", server: "https://c:6443", want: "Context lab"},
		{server: "https://c:6443", want: "API server https://c:6443"},
		{want: "Current cluster"},
	} {
		e := &environment{Flags: connect.NewFlags()}
		e.Hub, *e.APIServer = test.hub, test.server
		assert.Equal(t, test.want, e.describeCluster(test.context))
	}
}

// TestMessagesOfUsageNameCommandsAsTheyAre: what flags mean is not known yet.
func TestMessagesOfUsageNameCommandsAsTheyAre(t *testing.T) {
	errOut := &bytes.Buffer{}
	Run([]string{"--hub", "prod", "status", "--live"}, genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &bytes.Buffer{}, ErrOut: errOut}, "v1.2.3")
	assert.Equal(t, "error: kubectl ot status does not use --live: leave it out\n", errOut.String())
	errOut.Reset()
	t.Setenv("KUBECONFIG", t.TempDir()+"/none")
	Run([]string{"--hub", "prod", "status"}, genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &bytes.Buffer{}, ErrOut: errOut}, "v1.2.3")
	assert.NotContains(t, errOut.String(), "kubectl ot --hub", errOut.String())
}
