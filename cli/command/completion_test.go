package command

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pelotech/ot-fleet/cli/connect"
)

// newCompletedRoot returns all commands, and what they print.
func newCompletedRoot() (*cobra.Command, *bytes.Buffer) {
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	e := &environment{IOStreams: streams, Flags: connect.NewFlags(), version: "v1.2.3", now: time.Now}
	root := e.newRoot()
	return root, out
}

// TestCommandsThatTakeNamesCompleteThem goes through all commands: those without names of their
// own say so here.
func TestCommandsThatTakeNamesCompleteThem(t *testing.T) {
	newNames := map[string]bool{"kubectl ot join push": true, "kubectl ot join pull": true, "kubectl ot image publish": true, "kubectl ot prune report": true}
	root, _ := newCompletedRoot()
	for _, cmd := range allCommands(root) {
		if strings.Contains(cmd.Use, "NAME") && cmd.Runnable() && !newNames[cmd.CommandPath()] {
			assert.NotNil(t, cmd.ValidArgsFunction, "%s takes a name, and completes none", cmd.CommandPath())
		}
	}
}

func TestKindOf(t *testing.T) {
	for words, want := range map[string]nameKind{
		"leave": clusterKind, "quarantine": clusterKind, "why cluster": clusterKind, "events cluster": clusterKind, "join push": noKind,
		"rollout approve": fleetImageKind, "tree rollout": fleetImageKind, "image wait": fleetImageKind, "prune review": pruneReportKind, "prune approve": pruneReportKind, "prune undo": imagePruneKind, "prune status": imagePruneKind, "prune report": noKind,
		"get clusters": clusterKind, "get rollouts": fleetImageKind, "get machines": machineKind,
		"logs": imageKind, "why image": imageKind, "tree machine": machineKind, "status": noKind, "": noKind,
	} {
		assert.Equal(t, want, kindOf(strings.Fields(words)), words)
	}
}

func TestWithPrefix(t *testing.T) {
	assert.Equal(t, []string{"bergen", "berlin"}, withPrefix([]string{"oslo", "berlin", "bergen", "ber\x1b[2J", "ber gen"}, "ber"))
}

func TestContextsAreCompleted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, []byte("apiVersion: v1\nkind: Config\ncontexts: [{name: bergen, context: {}}, {name: kiel, context: {}}]\n"), 0o600))
	t.Setenv("KUBECONFIG", path)
	for _, flag := range []string{"--hub", "--member-context", "--context", "--member"} {
		root, out := newCompletedRoot()
		root.SetArgs([]string{"__complete", "leave", "x", flag, "b"})
		require.NoError(t, root.ExecuteContext(t.Context()))
		assert.Equal(t, "bergen\n:4\n", out.String(), flag)
	}
}

func TestCompletionInstall(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the file is a script of cmd.exe there")
	}
	dir := filepath.Join(t.TempDir(), "a folder")
	require.NoError(t, os.Mkdir(dir, 0o700))
	_, err := findPlugin(dir)
	require.ErrorContains(t, err, "has no kubectl-ot")
	plugin := filepath.Join(dir, "kubectl-ot")
	require.NoError(t, os.WriteFile(plugin, []byte("#!/bin/sh\necho \"$@\"\n"), 0o755))
	found, err := findPlugin(dir)
	require.NoError(t, err)
	assert.Equal(t, plugin, found)
	for range 2 {
		path, err := installCompletion(plugin)
		require.NoError(t, err)
		assert.Equal(t, filepath.Join(dir, "kubectl_complete-ot"), path)
		said, err := exec.CommandContext(t.Context(), path, "leave", "two words", "").Output()
		require.NoError(t, err)
		assert.Equal(t, "__complete leave two words \n", string(said))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kubectl_complete-ot"), []byte("mine"), 0o755))
	_, err = installCompletion(plugin)
	require.ErrorContains(t, err, "move it away")

	name, content := completionFile("windows", "kubectl-ot.exe")
	assert.Equal(t, "kubectl_complete-ot.cmd", name)
	assert.Contains(t, content, `"%~dp0kubectl-ot.exe" __complete %*`)
}
