package member

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/members"
)

// A hub that has just started is not connected yet: that is no reason to leave a
// plan behind.
func TestFarewellWaitsForAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Reconciler{Members: members.New(members.Options{})}
		begun := time.Now()
		require.ErrorIs(t, r.cleanUp(t.Context(), "edge"), errConnecting)
		assert.Equal(t, farewellTimeout, time.Since(begun), "it waited as long as it may")

		r.Members.Fail("edge", v1alpha1.ReasonCredentials, "its Secret is gone")
		begun = time.Now()
		require.ErrorContains(t, r.cleanUp(t.Context(), "edge"), "its Secret is gone")
		assert.Equal(t, (farewellAttempts-1)*farewellPause, time.Since(begun), "what is known to fail is not waited for")
	})
}
