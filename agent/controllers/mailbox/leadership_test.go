package mailbox

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/hubclient"
)

func newLease(holder string) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: "ot-agent"}}
	lease.Spec.HolderIdentity = ptr.To(holder)
	return lease
}

// A process that was paused is not told that it has lost the Lease.
func TestFormerLeaderSyncsNothing(t *testing.T) {
	lease := newLease("first")
	live := fake.NewClientBuilder().WithScheme(hubclient.Scheme).WithObjects(lease).Build()
	leadership := &LeadershipCheck{Live: live, Key: client.ObjectKeyFromObject(lease)}
	require.NoError(t, leadership.Confirm(t.Context()))
	require.NoError(t, leadership.Confirm(t.Context()), "it still leads")

	lease.Spec.HolderIdentity = ptr.To("second")
	require.NoError(t, live.Update(t.Context(), lease))
	require.ErrorIs(t, leadership.Confirm(t.Context()), errNotLeading)
	s := &Syncer{Leadership: leadership}
	_, err := (&connectionSync{syncer: s}).syncOnce(t.Context())
	require.ErrorIs(t, err, errNotLeading, "neither hub nor member is read")
	require.ErrorIs(t, s.renewLease(t.Context(), nil, nil), errNotLeading, "no heartbeat")

	require.NoError(t, live.Delete(t.Context(), lease))
	require.Error(t, leadership.Confirm(t.Context()), "an unknown holder is not leadership")
	require.NoError(t, (&LeadershipCheck{}).Confirm(t.Context()), "leader election is off")
}

// An agent may wait for days for its registration, and be paused meanwhile: the holder
// that it finds then is not itself.
func TestLeaderAtElectionIsRemembered(t *testing.T) {
	lease := newLease("first")
	live := fake.NewClientBuilder().WithScheme(hubclient.Scheme).WithObjects(lease).Build()
	s := &Syncer{Leadership: &LeadershipCheck{Live: live, Key: client.ObjectKeyFromObject(lease)}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, s.Start(ctx), "it is elected")
	lease.Spec.HolderIdentity = ptr.To("second")
	require.NoError(t, live.Update(t.Context(), lease))
	require.ErrorIs(t, s.Leadership.Confirm(t.Context()), errNotLeading)
}
