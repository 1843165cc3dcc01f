//go:build linux

package cli_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestPolicyDiff(t *testing.T) {
	var diff struct {
		Kind         string
		Changed      int
		Refused      []string
		ServerAnswer string
		Unread       string
		Rows         []struct {
			Member, From string
			Now, Then    int
		}
	}
	with := func(more ...string) []string { return append([]string{"policy", "diff"}, more...) }
	shared.runJSON(t, 0, &diff, with("--set", "concurrency=3")...)
	assert.Zero(t, diff.Changed)
	assert.Empty(t, diff.Unread, "the read API was asked how long images wait")

	shared.runJSON(t, 1, &diff, with("--set", "cluster="+bergen+",concurrency=1", "--server")...)
	require.Len(t, diff.Rows, 1)
	assert.Equal(t, bergen, diff.Rows[0].Member)
	assert.Equal(t, 3, diff.Rows[0].Now)
	assert.Equal(t, 1, diff.Rows[0].Then)
	assert.Equal(t, "override cluster="+bergen, diff.Rows[0].From)
	assert.Contains(t, diff.ServerAnswer, "1 of 2 members would change", "the hub says the same")
	previews := &corev1.ConfigMapList{}
	require.NoError(t, shared.List(t.Context(), previews, client.HasLabels{v1alpha1.LabelPolicyPreview}))
	assert.Empty(t, previews.Items, "what asked the hub is gone")

	file := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(file, []byte("concurrency: three\n"), 0o600))
	shared.runJSON(t, 2, &diff, with("-f", file)...)
	assert.Contains(t, diff.Refused[0], "concurrency")
	assert.Contains(t, shared.run(t, 1, with("--set", "concurrency=2", "-o", "markdown")...).Out, "| "+bergen+" | 3 | 2 |")
	assert.Contains(t, shared.run(t, 2, with()...).Err, "-f FILE")
}

func TestPolicyShow(t *testing.T) {
	testenv.RunInTurn(t, 9)
	var show struct {
		Problems []string
		Keys     []struct{ Name, Value, From string }
		Chain    *struct{ Planned, Budget int }
	}
	shared.runJSON(t, 0, &show, "policy", "show", "--cluster", bergen)
	assert.Empty(t, show.Problems)
	require.NotNil(t, show.Chain)
	assert.Equal(t, 3, show.Chain.Planned)
	assert.Equal(t, 3, show.Chain.Budget)
	assert.Contains(t, show.Keys, struct{ Name, Value, From string }{"concurrency", "3", "fleet default"})
	shared.run(t, 2, "policy", "show", "--cluster", "nowhere")
}
