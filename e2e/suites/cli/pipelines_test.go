//go:build linux

package cli_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/pages"
	"github.com/pelotech/ot-fleet/e2e/harness/plugin"
)

// pipelineJob runs scripts of docs/pipelines.md as a pipeline does.
type pipelineJob struct {
	folder string
	env    []string
}

func newPipelineJob(t *testing.T, env ...string) *pipelineJob {
	t.Helper()
	programs, err := binaries.Ensure(t.Context(), binaries.Kubectl)
	require.NoError(t, err)
	ot, err := plugin.Build()
	require.NoError(t, err)
	path := "PATH=" + filepath.Dir(ot) + string(filepath.ListSeparator) + strings.TrimPrefix(programs.PathVariable(), "PATH=")
	return &pipelineJob{t.TempDir(), append(env, path, "KUBECONFIG="+shared.Kubeconfig)}
}

// run runs a script and returns its output and exit code.
func (j *pipelineJob) run(t *testing.T, script string, env ...string) (output string, code int) {
	t.Helper()
	// vmdi-farm is a namespace of the page, and the others are those of this fleet.
	script = strings.ReplaceAll(script, "vmdi-farm", fleet.Namespace)
	path := filepath.Join(j.folder, "script")
	require.NoError(t, os.WriteFile(path, []byte(script), 0o700))
	cmd := exec.CommandContext(t.Context(), "sh", path)
	cmd.Dir, cmd.Env = j.folder, append(append(os.Environ(), j.env...), env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	t.Logf("exit code %d\n%s", cmd.ProcessState.ExitCode(), out)
	return string(out), cmd.ProcessState.ExitCode()
}

func (j *pipelineJob) read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(j.folder, name))
	require.NoError(t, err)
	return string(text)
}

// deleteFleetImageAtEnd deletes a FleetDiskImage and its images when the test ends.
func deleteFleetImageAtEnd(t *testing.T, name string) {
	t.Helper()
	t.Cleanup(func() {
		img := &v1alpha1.FleetDiskImage{}
		img.Name = name
		ctx := context.Background()
		assert.NoError(t, client.IgnoreNotFound(shared.Delete(ctx, img)))
		for _, m := range shared.Members {
			assert.NoError(t, m.DeleteAllOf(ctx, &v1alpha1.VMDiskImage{}, client.InNamespace(fleet.Namespace), client.MatchingLabels{v1alpha1.LabelPlanned: "true"}))
		}
	})
}

// Publish, wait, fail, retry, by the scripts of the page as they are.
func TestPipelinesPage(t *testing.T) {
	var available atomic.Bool
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !available.Load() {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(source.Close)
	page := pages.Read(t, "docs/pipelines.md")

	t.Run("shell", func(t *testing.T) {
		deleteFleetImageAtEnd(t, "pipeline-shell")
		job := newPipelineJob(t, "IMAGE=pipeline-shell", "VERSION=1", "URL="+source.URL+"/disk.qcow2", "SIZE=1Gi", "CLUSTERS=region=nordics")
		script := page.Block(t, "sh", "image publish")
		output, code := job.run(t, script)
		assert.Equal(t, 1, code)
		assert.Contains(t, output, "is Failed, MaxFailures: 1 cluster has failed ("+bergen+")")
		output, code = job.run(t, script, "RETRY=yes")
		assert.Equal(t, 1, code, "the source still lacks it: the retry fails, too")
		assert.Contains(t, output, "starts over in 1 cluster")

		available.Store(true)
		output, code = job.run(t, script, "RETRY=yes")
		assert.Equal(t, 0, code)
		assert.Contains(t, output, "is Succeeded, RolledOut: 1 of 1 cluster")
	})
	t.Run("GitHub Action", func(t *testing.T) {
		deleteFleetImageAtEnd(t, "ubuntu")
		var workflow struct {
			Jobs map[string]struct{ Steps []struct{ Run string } }
		}
		require.NoError(t, yaml.Unmarshal([]byte(page.Block(t, "yaml", "GITHUB_STEP_SUMMARY")), &workflow))
		job := newPipelineJob(t, "VERSION=1", "URL="+source.URL+"/disk.qcow2", "GITHUB_STEP_SUMMARY=summary.md")
		_, code := job.run(t, workflow.Jobs["publish"].Steps[0].Run)
		assert.Equal(t, 0, code)
		assert.Contains(t, job.read(t, "summary.md"), "Succeeded")
	})
	t.Run("Tekton", func(t *testing.T) {
		deleteFleetImageAtEnd(t, "pipeline-tekton")
		var task struct {
			Spec struct {
				Params []struct{ Name string }
				Steps  []struct {
					Env    []struct{ Name, Value string }
					Script string
				}
			}
		}
		require.NoError(t, yaml.Unmarshal([]byte(page.Block(t, "yaml", "kind: Task")), &task))
		values := map[string]string{"image": "pipeline-tekton", "version": "1", "url": source.URL + "/disk.qcow2", "size": "1Gi", "clusters": "region in (nordics,south)"}
		fill := func(text string) string {
			for _, p := range task.Spec.Params {
				text = strings.ReplaceAll(text, fmt.Sprintf("$(params.%s)", p.Name), values[p.Name])
			}
			return strings.ReplaceAll(text, "$(results.phase.path)", "phase")
		}
		step := task.Spec.Steps[0]
		var env []string
		for _, e := range step.Env {
			env = append(env, e.Name+"="+fill(e.Value))
		}
		job := newPipelineJob(t, env...)
		_, code := job.run(t, fill(step.Script))
		assert.Equal(t, 0, code)
		assert.Equal(t, "Succeeded", job.read(t, "phase"), "a result of a task has no line break")
	})
}
