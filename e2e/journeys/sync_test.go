//go:build linux

package journeys

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestQueueOfImages(t *testing.T) {
	o := observe(t)
	ns := newNamespace(t)
	setPolicy(t, map[string]string{"concurrency": "3", "retryLimit": "2", "retryBackoffDuration": "1s"})
	c := place.member.Client()

	var images []*v1alpha1.VMDiskImage
	for i := range 8 {
		img := newImage(ns, fmt.Sprintf("image-%d", i), fmt.Sprintf("/ok/1s/%d.qcow2", i))
		require.NoError(t, c.Create(t.Context(), img))
		images = append(images, img)
	}
	heals := newImage(ns, "heals", "/flaky/1/1s/heals.qcow2")
	fails := newImage(ns, "lab-404", "/servererror/lab-404.qcow2")
	gone := newImage(ns, "gone", "/gone/gone.qcow2")
	for _, img := range []*v1alpha1.VMDiskImage{heals, fails, gone} {
		require.NoError(t, c.Create(t.Context(), img))
	}

	for _, img := range append(images, heals) {
		got := eventually(t, img, inPhase(v1alpha1.PhaseSucceeded))
		require.NotNil(t, got.Status.Serving)
		assert.NotEmpty(t, got.Status.Serving.VolumeSnapshot)
		assert.NotNil(t, got.Status.Serving.RestoreSize)
	}
	failed := eventually(t, fails, inPhase(v1alpha1.PhaseFailed))
	assert.Equal(t, v1alpha1.ReasonImportFailed, failed.Status.Reason, "a name is no status code")
	missing := eventually(t, gone, inPhase(v1alpha1.PhaseFailed))
	assert.Equal(t, v1alpha1.ReasonNotFound, missing.Status.Reason)

	h, err := o.History(t.Context())
	require.NoError(t, err)
	assert.Empty(t, h.OverBudget())
	assert.Equal(t, 3, h.MostRunning(), "the budget is used")
	assert.Empty(t, h.Reused())
	assert.Equal(t, 3, h.Attempts(fails.UID), "retryLimit + 1")
	assert.Equal(t, 2, h.Attempts(heals.UID))
	assert.Equal(t, 0, h.Attempts(gone.UID), "a missing image costs no slot")
	var started = h.StartOrder()
	for i, img := range images {
		assert.Equal(t, img.UID, started[i], "image %d of the queue", i)
	}
}
