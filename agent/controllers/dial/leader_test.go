package dial

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

// One that was paused and wakes is told by nobody that it leads no more.
func TestFormerLeaderSyncsNothing(t *testing.T) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: "ot-agent"}}
	lease.Spec.HolderIdentity = ptr.To("first")
	live := fake.NewClientBuilder().WithScheme(hubclient.Scheme).WithObjects(lease).Build()
	leader := &LeadershipCheck{Live: live, Key: client.ObjectKeyFromObject(lease)}
	require.NoError(t, leader.Confirm(t.Context()))
	require.NoError(t, leader.Confirm(t.Context()), "it leads on")

	lease.Spec.HolderIdentity = ptr.To("second")
	require.NoError(t, live.Update(t.Context(), lease))
	require.ErrorIs(t, leader.Confirm(t.Context()), errNotLeading)
	c := &Syncer{Leader: leader}
	_, err := (&connectionSync{syncer: c}).syncOnce(t.Context())
	require.ErrorIs(t, err, errNotLeading, "neither hub nor member are looked at")
	require.ErrorIs(t, c.renewLease(t.Context(), nil, nil), errNotLeading, "nor is there a sign of life")

	require.NoError(t, live.Delete(t.Context(), lease))
	require.Error(t, leader.Confirm(t.Context()), "what is not known is no leadership")
	require.NoError(t, (&LeadershipCheck{}).Confirm(t.Context()), "where agents need not be elected")
}

// An agent may wait for days to be let in, and be paused meanwhile: whom it finds
// leading when it wakes is not itself.
func TestLeaderAtElectionIsRemembered(t *testing.T) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: "ot-agent"}}
	lease.Spec.HolderIdentity = ptr.To("first")
	live := fake.NewClientBuilder().WithScheme(hubclient.Scheme).WithObjects(lease).Build()
	c := &Syncer{Leader: &LeadershipCheck{Live: live, Key: client.ObjectKeyFromObject(lease)}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, c.Start(ctx), "it is elected")
	lease.Spec.HolderIdentity = ptr.To("second")
	require.NoError(t, live.Update(t.Context(), lease))
	require.ErrorIs(t, c.Leader.Confirm(t.Context()), errNotLeading)
}
