//go:build linux

package rollout_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// A person starts failed clusters over from the hub: one of them, then all. Each token counts
// once, and what fails again stays failed.
func TestFailedClustersStartOver(t *testing.T) {
	testenv.RunInTurn(t, 12)
	t.Parallel()
	var available atomic.Bool
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !available.Load() {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(source.Close)
	clusters := []string{bergen, edge}
	img := shared.newFleetImage("again", clusters...)
	img.Spec.Template.URL = source.URL + "/again.qcow2"
	name := img.ImageNameForVersion("1")
	shared.createFleetImage(t, img)
	allFailed := hasCounts(v1alpha1.ClusterCounts{Total: 2, Failed: 2})
	shared.awaitFleetImage(t, img, "failed", allFailed)

	shared.updateFleetImage(t, img, func() { img.Spec.Retry = &v1alpha1.RetryRequest{Token: "1", Clusters: []string{bergen}} })
	observed := func(token string) func(*v1alpha1.FleetDiskImage) bool {
		return func(img *v1alpha1.FleetDiskImage) bool { return img.Status.ObservedRetry == token }
	}
	shared.awaitFleetImage(t, img, "failed again", observed("1"), allFailed)
	shared.Members[bergen].AwaitImage(t, name, "started over and failed again", func(i *v1alpha1.VMDiskImage) bool {
		return i.Status.ObservedPlanRetry == "1" && i.Status.Phase == v1alpha1.PhaseFailed
	})
	assert.Empty(t, shared.Members[edge].GetImage(t, name).Status.ObservedPlanRetry, "it was not named")

	// A token that is there already does nothing, whatever else the plan gets.
	before := shared.Members[bergen].GetImage(t, name).Status
	shared.awaitFreshPlans(t, "again-beside", clusters...)
	after := shared.Members[bergen].GetImage(t, name).Status
	assert.Equal(t, before.Revisions, after.Revisions)

	available.Store(true)
	shared.updateFleetImage(t, img, func() { img.Spec.Retry = &v1alpha1.RetryRequest{Token: "2"} })
	neverFailed := func(img *v1alpha1.FleetDiskImage) bool {
		if img.Status.ObservedGeneration == img.Generation {
			assert.NotEqual(t, v1alpha1.RolloutFailed, img.Status.Phase, "a client would take it for the answer")
		}
		return true
	}
	shared.awaitFleetImage(t, img, "rolled out", neverFailed, hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}), observed("2"))
	assertDownloadedOnce(t, name, clusters...)
}
