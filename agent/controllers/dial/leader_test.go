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

	"github.com/pelotech/ot-fleet/api/dial"
)

// One that was paused and wakes is told by nobody that it leads no more.
func TestWhoLeadsNoMoreCarriesNothing(t *testing.T) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: "ot-agent"}}
	lease.Spec.HolderIdentity = ptr.To("first")
	live := fake.NewClientBuilder().WithScheme(dial.Scheme).WithObjects(lease).Build()
	leader := &Leader{Live: live, Key: client.ObjectKeyFromObject(lease)}
	require.NoError(t, leader.Leads(t.Context()))
	require.NoError(t, leader.Leads(t.Context()), "it leads on")

	lease.Spec.HolderIdentity = ptr.To("second")
	require.NoError(t, live.Update(t.Context(), lease))
	require.ErrorIs(t, leader.Leads(t.Context()), errNotLeading)
	c := &Carrier{Leader: leader}
	_, err := (&transfer{carrier: c}).carry(t.Context())
	require.ErrorIs(t, err, errNotLeading, "neither hub nor member are looked at")
	require.ErrorIs(t, c.renewLease(t.Context(), nil, nil), errNotLeading, "nor is there a sign of life")

	require.NoError(t, live.Delete(t.Context(), lease))
	require.Error(t, leader.Leads(t.Context()), "what is not known is no leadership")
	require.NoError(t, (&Leader{}).Leads(t.Context()), "where agents need not be elected")
}

// An agent may wait for days to be let in, and be paused meanwhile: whom it finds
// leading when it wakes is not itself.
func TestWhoLedWhenItWasElectedIsKnown(t *testing.T) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: "ot-agent"}}
	lease.Spec.HolderIdentity = ptr.To("first")
	live := fake.NewClientBuilder().WithScheme(dial.Scheme).WithObjects(lease).Build()
	c := &Carrier{Leader: &Leader{Live: live, Key: client.ObjectKeyFromObject(lease)}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, c.Start(ctx), "it is elected")
	lease.Spec.HolderIdentity = ptr.To("second")
	require.NoError(t, live.Update(t.Context(), lease))
	require.ErrorIs(t, c.Leader.Leads(t.Context()), errNotLeading)
}
