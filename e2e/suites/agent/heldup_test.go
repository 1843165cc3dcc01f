//go:build linux

package agent

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// requireHeldUp waits until an import says what holds it up, long before its stallTimeout.
func requireHeldUp(t *testing.T, img *v1alpha1.VMDiskImage, reason v1alpha1.Reason, text string, stalled bool) {
	t.Helper()
	got := env.AwaitImage(t, img, testenv.HasReason(reason))
	assert.Equal(t, v1alpha1.PhaseSyncing, got.Status.Phase)
	assert.Contains(t, got.Status.Message, "importing, attempt 1 of 1: ")
	assert.Contains(t, got.Status.Message, text)
	assert.Equal(t, stalled, meta.IsStatusConditionTrue(got.Status.Conditions, v1alpha1.ConditionStalled))
}

// TestCordonedNodes wants the scheduler's words, and the import to go on by itself.
func TestCordonedNodes(t *testing.T) {
	testenv.RunInTurn(t, 26)
	history := observeUnderPolicy(t, "retryLimit", "0")
	cordon := func(on bool) error {
		node := &corev1.Node{}
		if err := env.Client().Get(context.Background(), client.ObjectKey{Name: simulator.NodeName}, node); err != nil {
			return err
		}
		base := client.MergeFrom(node.DeepCopy())
		node.Spec.Unschedulable = on
		return env.Client().Patch(context.Background(), node, base)
	}
	require.NoError(t, cordon(true))
	t.Cleanup(func() { assert.NoError(t, cordon(false)) })
	img := createImage(t, "/ok/200ms/a")
	requireHeldUp(t, img, v1alpha1.ReasonImporterUnschedulable, "0/1 nodes are available", false)
	require.NoError(t, cordon(false))
	env.AwaitSucceeded(t, img)
	assert.Equal(t, 1, history().Attempts(img.UID))
}

// TestRefusedImporter has a LimitRange refuse CDI's Pod, which CDI says in its own words.
func TestRefusedImporter(t *testing.T) {
	history := observeUnderPolicy(t, "retryLimit", "0")
	ns := env.CreateHomeNamespace(t)
	limits := env.CreateLimitRange(t, ns, corev1.LimitTypeContainer, corev1.ResourceCPU, "1m")
	img := env.NewImage(ns, "image", "/ok/200ms/a")
	env.Create(t, img)
	requireHeldUp(t, img, v1alpha1.ReasonImporterRefused, "Error starting pod 'importer-", true)
	require.NoError(t, env.Client().Delete(t.Context(), limits))
	env.AwaitSucceeded(t, img)
	assert.Equal(t, 1, history().Attempts(img.UID))
}
