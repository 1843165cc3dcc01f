//go:build linux

package restore_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// TestHubWithUnreadableDiscovery shows that a hub without the right to list Clusters, but
// configured to discover them, serves the members that it knows. The chart grants that
// right only if Cluster API is enabled.
func TestHubWithUnreadableDiscovery(t *testing.T) {
	for _, what := range []string{"not served", "not allowed"} {
		t.Run(what, func(t *testing.T) {
			if what == "not allowed" {
				require.NoError(t, program.InstallClusterCRD(t.Context(), shared.HubMember.ControlPlane.Config()))
			}
			h := shared.startHub(t, nil, append(longLease, "--cluster-api-selector=fleet=ot")...)
			shared.awaitLeader(t, h)
			for n := range 2 {
				shared.awaitAcknowledged(t, shared.setNewBudget(t))
				shared.setFakeImages(t, plainFake, 10+n)
				shared.awaitImageCount(t, plainFake, int32(10+n))
			}
			assert.False(t, h.HasEnded())
		})
	}
}
