package rollout

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A plan that the API server refuses is decided about at once, and once it is taken.
func TestRefusedPlanIsKnownToRollouts(t *testing.T) {
	fleetImage := apitest.FleetDiskImage("ubuntu").Obj()
	fleetImage.Spec.Retry = &v1alpha1.RetryRequest{Token: "1"}
	f := newTestState(t, "bergen")
	f.SetImage(fleetImage)
	f.Decide("ubuntu", now)
	for _, refused := range []bool{true, false} {
		f.enqueued["ubuntu"] = 0
		f.SetPlanRefused("bergen", refused)
		f.SetPlanRefused("bergen", refused)
		f.SetPlanRefused("nowhere", refused)
		assert.Equal(t, 1, f.enqueued["ubuntu"])
		v, found := f.View("ubuntu", now.Add(time.Second))
		require.True(t, found)
		assert.Equal(t, refused, v.Clusters[0].PlanRefused)
	}
}
