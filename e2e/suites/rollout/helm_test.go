//go:build linux

package rollout_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/pages"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// helmRun is a running helm command.
type helmRun struct {
	done   chan struct{}
	output string
	err    error
}

// startHelm runs the command of docs/waiting.md for a chart with one FleetDiskImage. Each name is
// a release of its own.
func (f *testFleet) startHelm(t *testing.T, term *pages.Terminal, img *v1alpha1.FleetDiskImage) *helmRun {
	t.Helper()
	chart := filepath.Join(term.Directory, img.Name)
	require.NoError(t, os.MkdirAll(filepath.Join(chart, "templates"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(chart, "Chart.yaml"), []byte("apiVersion: v2\nname: images\nversion: 1.0.0\n"), 0o600))
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "FleetDiskImage", "metadata": map[string]any{"name": img.Name}, "spec": img.Spec,
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(chart, "templates", "image.yaml"), text, 0o600))

	commands := slices.DeleteFunc(pages.Read(t, "docs/waiting.md").Commands(), func(command string) bool { return !strings.HasPrefix(command, "helm ") })
	require.Len(t, commands, 1)
	command := strings.NewReplacer("--install images ", "--install "+img.Name+" ", "./images", "./"+img.Name).Replace(commands[0])
	run := &helmRun{done: make(chan struct{})}
	go func() {
		defer close(run.done)
		run.output, run.err = term.Run(t, command)
	}()
	return run
}

// requireReturned waits until helm returns.
func (r *helmRun) requireReturned(t *testing.T) {
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(testenv.Patience):
		require.Fail(t, "helm does not return")
	}
}

func (r *helmRun) requireWaiting(t *testing.T, why string) {
	t.Helper()
	select {
	case <-r.done:
		require.Fail(t, "helm has returned while the rollout "+why, "%v\n%s", r.err, r.output)
	default:
	}
}

// Helm 4 waits by the conditions of kstatus.
func TestHelmWaitsForRollout(t *testing.T) {
	t.Parallel()
	me := &authenticationv1.SelfSubjectReview{}
	require.NoError(t, shared.Create(t.Context(), me))
	term := pages.OpenTerminal(t, "hub", map[string]string{"hub": shared.Plane.Kubeconfig()})
	img := shared.newFleetImage("by-helm", bergen, edge)
	img.Spec.Rollout.Waves = []v1alpha1.Wave{newWave("first", labelSite, bergen), newWave("second", labelSite, edge)}
	img.Spec.Rollout.Waves[1].RequireApproval = true
	img.Spec.Rollout.Paused = true
	shared.deleteFleetImageAfter(t, img.Name)

	helm := shared.startHelm(t, term, img)
	shared.awaitFleetImage(t, img, "paused", hasReason(v1alpha1.RolloutWaiting, v1alpha1.ReasonRolloutPaused))
	shared.awaitFreshPlans(t, "by-helm-paused", bergen)
	helm.requireWaiting(t, "is paused")

	release := shared.Members[bergen].HoldImports(t, img.ImageNameForVersion("1"))
	shared.updateFleetImage(t, img, func() { img.Spec.Rollout.Paused = false })
	shared.awaitFleetImage(t, img, "in progress", hasCounts(v1alpha1.ClusterCounts{Total: 2, Progressing: 1, ToApply: 1}))
	shared.awaitFreshPlans(t, "by-helm-progressing", edge)
	helm.requireWaiting(t, "is in progress")

	release()
	shared.awaitFleetImage(t, img, "waits for approval", hasReason(v1alpha1.RolloutWaiting, v1alpha1.ReasonAwaitingApproval))
	shared.awaitFreshPlans(t, "by-helm-approval", edge)
	helm.requireWaiting(t, "awaits approval")

	shared.updateFleetImage(t, img, func() {
		img.Spec.Approvals = append(img.Spec.Approvals, v1alpha1.Approval{Wave: "second", Version: "1", By: me.Status.UserInfo.Username})
	})
	helm.requireReturned(t)
	require.NoError(t, helm.err, helm.output)
	require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(img), img))
	assert.True(t, hasSucceeded(img), "helm has returned before the rollout is finished: %s", describeFleetImage(img))
}

// A rollout that fails ends Helm's wait, with its message.
func TestHelmReportsFailedRollout(t *testing.T) {
	testenv.RunInTurn(t, 6)
	t.Parallel()
	term := pages.OpenTerminal(t, "hub", map[string]string{"hub": shared.Plane.Kubeconfig()})
	img := shared.newFleetImage("by-helm-failed", bergen)
	shared.setMissingSource(img)
	shared.deleteFleetImageAfter(t, img.Name)
	helm := shared.startHelm(t, term, img)
	shared.awaitFleetImage(t, img, "failed", hasReason(v1alpha1.RolloutFailed, v1alpha1.ReasonMaxFailures))
	helm.requireReturned(t)
	require.Error(t, helm.err)
	assert.Contains(t, helm.output, "See status.failing")
}
