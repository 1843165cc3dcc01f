//go:build linux

package journeys

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestQueueOrderSurvivesDowntime: what was in the queue before the agent went stays in
// front; what came meanwhile follows in the order in which it was created, also
// within one second.
func TestQueueOrderSurvivesDowntime(t *testing.T) {
	testScene.SetPolicy(t, map[string]string{"concurrency": "0"})
	ns := testScene.CreateNamespace(t)
	o := testScene.StartObserver(t)
	var want []types.UID
	create := func(prefix string) []*v1alpha1.VMDiskImage {
		var images []*v1alpha1.VMDiskImage
		for i := range 5 {
			// By name they would queue the other way round.
			img := testScene.NewImage(ns, fmt.Sprintf("%s-%d", prefix, 9-i), "/ok/100ms/disk.qcow2")
			testScene.Create(t, img)
			images = append(images, img)
			want = append(want, img.UID)
		}
		return images
	}
	queued := create("z-before")
	for _, img := range queued {
		testScene.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonPaused))
	}
	var missed []*v1alpha1.VMDiskImage
	testScene.WithoutAgent(t, func() { missed = create("a-meanwhile") })
	for _, img := range missed {
		testScene.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonPaused))
	}
	late := create("m-after")
	for _, img := range late {
		testScene.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonPaused))
	}
	testScene.SetPolicy(t, map[string]string{"concurrency": "2"})
	for _, img := range append(append(queued, missed...), late...) {
		testScene.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
	}
	h := testenv.History(t, o)
	assert.Equal(t, want, h.StartOrder())
	assert.Empty(t, h.BudgetViolations())
}
