package relay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
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

// Failed attempts are counted before any member was connected, and connections that come and go
// forget neither them nor what was copied.
func TestConnectionsKeepMemberState(t *testing.T) {
	r := &Reconciler{Members: memberclient.New(memberclient.Options{}), Replica: shard.NewReplica(nil, shard.Options{})}
	r.Members.SetUnreachable("edge", "", v1alpha1.ReasonCredentialsMissing, "its Secret is gone")
	assert.Equal(t, cleanUpRetryDelay, r.cleanUpMember(t.Context(), "edge", nil, &v1alpha1.MemberLinkStatus{}))
	assert.Zero(t, r.ensureState("other", &memberclient.Member{}).cleanUp.failed, "another member can be synced")

	now := time.Now()
	r.ensureState("edge", &memberclient.Member{}).uploads.record(2*uploadBurst, now)
	next := r.ensureState("edge", &memberclient.Member{})
	assert.Positive(t, next.uploads.wait(now))
	assert.Equal(t, 1, next.cleanUp.failed)
	assert.Same(t, next, r.ensureState("edge", next.member))

	r.forgetMember("edge")
	assert.Zero(t, r.ensureState("edge", next.member).memberState)
}
