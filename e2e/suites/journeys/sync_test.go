//go:build linux

package journeys

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestImagesSyncInQueueOrder(t *testing.T) {
	testScene.SetPolicy(t, map[string]string{"concurrency": "3", "retryLimit": "2", "retryBackoffDuration": "1s"})
	ns := testScene.CreateNamespace(t)
	o := testScene.StartObserver(t)

	var fine []*v1alpha1.VMDiskImage
	for i := range 8 {
		fine = append(fine, testScene.NewSnapshottedImage(ns, fmt.Sprintf("image-%d", i), fmt.Sprintf("/ok/1s/%d.qcow2", i)))
		testScene.Create(t, fine[i])
	}
	heals := testScene.NewSnapshottedImage(ns, "heals", "/flaky/1/1s/heals.qcow2")
	fails := testScene.NewImage(ns, "lab-404", "/servererror/lab-404.qcow2")
	gone := testScene.NewImage(ns, "gone", "/gone/gone.qcow2")
	testScene.Create(t, heals, fails, gone)

	for _, img := range append(fine, heals) {
		got := testScene.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
		require.NotNil(t, got.Status.Serving)
		assert.NotEmpty(t, got.Status.Serving.VolumeSnapshot)
		assert.NotNil(t, got.Status.Serving.RestoreSize)
	}
	failed := testScene.AwaitImage(t, fails, testenv.InPhase(v1alpha1.PhaseFailed))
	assert.Equal(t, v1alpha1.ReasonImportFailed, failed.Status.Reason, "a name is no status code")
	missing := testScene.AwaitImage(t, gone, testenv.InPhase(v1alpha1.PhaseFailed))
	assert.Equal(t, v1alpha1.ReasonNotFound, missing.Status.Reason)

	h := testenv.History(t, o)
	assert.Empty(t, h.BudgetViolations())
	assert.Equal(t, 3, h.MaxRunning(), "the budget is used")
	assert.Empty(t, h.ReusedNames())
	assert.Equal(t, 3, h.Attempts(fails.UID), "retryLimit + 1")
	assert.Equal(t, 2, h.Attempts(heals.UID))
	assert.Equal(t, 0, h.Attempts(gone.UID), "a missing image costs no slot")
	started := h.StartOrder()
	for i, img := range fine {
		assert.Equal(t, img.UID, started[i], "image %d of the queue", i)
	}
}
