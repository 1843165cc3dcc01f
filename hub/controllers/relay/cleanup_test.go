package relay

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberclient"
)

// A replica that has just taken over a member is not connected yet, which is no reason to
// leave a plan behind. What is known to fail is tried a bounded number of times.
func TestCleanUpWaitsForConnection(t *testing.T) {
	r := &Reconciler{Members: memberclient.New(memberclient.Options{})}
	var status v1alpha1.MemberLinkStatus
	for range 2 * maxCleanUpAttempts {
		assert.Zero(t, r.cleanUpMember(t.Context(), "edge", nil, &status), "the connection brings it back")
	}
	assert.Empty(t, status.CleanUpError)

	r.Members.SetUnreachable("edge", "", v1alpha1.ReasonCredentialsMissing, "its Secret is gone")
	for range maxCleanUpAttempts - 1 {
		assert.Equal(t, cleanUpRetryDelay, r.cleanUpMember(t.Context(), "edge", nil, &status))
		assert.Empty(t, status.CleanUpError)
	}
	assert.Zero(t, r.cleanUpMember(t.Context(), "edge", nil, &status))
	assert.Contains(t, status.CleanUpError, "its Secret is gone")
	assert.False(t, status.CleanedUp)
}
