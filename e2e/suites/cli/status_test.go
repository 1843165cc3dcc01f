//go:build linux

package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestStatus(t *testing.T) {
	testenv.RunInTurn(t, 11)
	var status struct {
		Kind     string
		Hub      string
		Clusters struct{ Total, Ready int }
		Unread   string
	}
	for _, name := range []string{bergen, kiel} {
		shared.AwaitMember(t, name, "Ready without failed images", fleet.IsReady, func(c *v1alpha1.MemberCluster) bool {
			return c.Status.Images != nil && c.Status.Images.Failed == 0 && len(c.Status.Failing) == 0
		})
	}
	shared.runJSON(t, 0, &status, "status")
	assert.Equal(t, "Status", status.Kind)
	assert.Equal(t, 2, status.Clusters.Ready)
	assert.Empty(t, status.Unread, "the read API answers")
	shared.runJSON(t, 0, &status, "fleet", "status", "-l", "region=nordics")
	assert.Equal(t, 1, status.Clusters.Total)

	// A member's context knows its hub.
	shared.runJSON(t, 0, &status, "status", "--context", bergen)
	assert.Equal(t, hubContext, status.Hub)
	assert.Equal(t, 2, status.Clusters.Total)
}

// A role of an earlier version may not list ImagePrunes.
func TestStatusWithoutImagePrunes(t *testing.T) {
	testenv.RunInTurn(t, 11)
	name := metav1.ObjectMeta{Name: "status-only"}
	shared.CreateForTest(t, &rbacv1.ClusterRole{
		ObjectMeta: name,
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"memberclusters", "fleetdiskimages", "prunereports"}, Verbs: []string{"list"},
		}},
	})
	shared.CreateForTest(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "anna"}},
	})
	var status struct{ Clusters struct{ Total int } }
	require.True(t, testenv.AwaitCondition(t, func() bool { // RBAC is cached
		result, err := shared.Run(t.Context(), nil, "status", "--as", "anna", "--allow-unknown", "-o", "json")
		return err == nil && json.Unmarshal([]byte(result.Out), &status) == nil && status.Clusters.Total == 2
	}))
}

// Each mistake ends with a sentence that says what to do.
func TestMistakesAreExplained(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		says string
	}{
		"no such context":    {[]string{"status", "--hub", "nowhere"}, "the kubeconfig has no context nowhere"},
		"a member as a hub":  {[]string{"status", "--hub", bergen}, "name the hub's context with --hub"},
		"no such format":     {[]string{"status", "-o", "xml"}, "must be one of wide, json"},
		"no such color":      {[]string{"status", "--color", "red"}, "must be auto, always or never"},
		"broken selector":    {[]string{"status", "-l", "region in nordics"}, "must be a label selector"},
		"no such verb":       {[]string{"stauts"}, "status"},
		"no such kubeconfig": {[]string{"status", "--kubeconfig", "/nowhere"}, "/nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			result := shared.run(t, 2, test.args...)
			assert.Empty(t, result.Out)
			assert.Contains(t, result.Err, test.says)
		})
	}
}

func TestStatusTellsOfFailedImage(t *testing.T) {
	img := fleet.NewImage("status-of-failed")
	img.Spec.URL = shared.source.URL + "/missing/a.qcow2"
	m := shared.Members[bergen]
	require.NoError(t, m.Create(t.Context(), img))
	t.Cleanup(func() { require.NoError(t, m.Delete(context.Background(), img)) })
	m.AwaitPhase(t, img.Name, v1alpha1.PhaseFailed)
	shared.awaitFailing(t, img.Name)
	result := shared.run(t, 1, "status")
	assert.Contains(t, result.Out, "1 failing (bergen")
	assert.Contains(t, result.Out, "kubectl ot why image status-of-failed -n default --cluster bergen")
}

// A watch prints a line for each change where there is no terminal, and ends by ctrl-C with
// the exit code that shells have for it.
func TestWatchEndsByInterrupt(t *testing.T) {
	cmd, err := shared.Command(t.Context(), "status", "-w")
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	first, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	assert.Contains(t, first, "FLEET hub")
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.Error(t, cmd.Wait())
	assert.Equal(t, 130, cmd.ProcessState.ExitCode())
}

// Who reads no further ends the command, without a word.
func TestClosedPipeEndsCommand(t *testing.T) {
	cmd, err := shared.Command(t.Context(), "status", "-o", "json")
	require.NoError(t, err)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, reader.Close())
	cmd.Stdout = writer
	require.NoError(t, cmd.Start())
	require.NoError(t, writer.Close())
	require.Error(t, cmd.Wait())
	assert.Empty(t, problems.String())
}
