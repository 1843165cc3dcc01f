package grant

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A member in quarantine holds nothing, and gets nothing; the others go on at once.
func TestQuarantinedMemberIsNotCounted(t *testing.T) {
	s := newTestHub(t, "liar", "b")
	s.applyPolicy(map[string]string{"concurrency": "9", "fleetConcurrency": "4"})
	s.reportDemand("liar", 256, 256)
	s.reportDemand("b", 0, 9)
	s.reconcile()
	require.Zero(t, s.getGrant("b").Limits.Slots)

	liar := s.getMember("liar")
	liar.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "it lies"}
	require.NoError(t, s.live.Update(t.Context(), liar))
	before := s.getGrant("liar")
	s.reportDemand("liar", 256, 256)
	s.reconcile()
	assert.Equal(t, int32(4), s.getGrant("b").Limits.Slots)
	assert.Equal(t, before, s.getGrant("liar"))
	shown := s.Shares.ForMember("liar")
	assert.Equal(t, v1alpha1.TransfersQuarantined, shown.Reason)
	assert.Zero(t, shown.Held)

	// It is not reserved when it is removed, nor by the next process.
	require.NoError(t, s.live.Delete(t.Context(), s.getMember("liar")))
	s.reconcile()
	assert.Empty(t, s.departures.stored)
}
