package grant

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Another hub that has the same member raises its grant above each of this hub's.
func TestGrantsOfTwoHubsStopRising(t *testing.T) {
	s := newTestHub(t, "a", "b")
	s.applyPolicy(map[string]string{"concurrency": "3"})
	s.reconcile()
	for range 20 {
		link := &v1alpha1.MemberLink{}
		require.NoError(t, s.live.Get(t.Context(), client.ObjectKey{Namespace: "ot-member-a", Name: v1alpha1.MailboxName}, link))
		link.Status.AheadGrant = s.getGrant("a").Sequence + 1
		require.NoError(t, s.live.Update(t.Context(), link))
		s.reconcile()
	}
	assert.Equal(t, int64(13), s.getGrant("a").Sequence, "1, and twice 6")
	assert.Equal(t, int64(1), s.getGrant("b").Sequence)
	assert.Positive(t, s.reconcile().RequeueAfter, "it tries again by itself")
}
