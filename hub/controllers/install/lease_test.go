package install

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/install"
)

const leaseDuration = 30 * time.Second

// fakeMember is an API server that may be cut off from a hub, or may store what is sent to it and
// not answer.
type fakeMember struct {
	client.Client
	cut, silent atomic.Bool
}

func newFakeMember() *fakeMember {
	m := &fakeMember{}
	m.Client = fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if m.cut.Load() {
				return errors.New("cut off")
			}
			err := c.Update(ctx, o, opts...)
			if m.silent.Load() {
				ctx, cancel := context.WithTimeout(ctx, leaseDuration/3)
				defer cancel()
				<-ctx.Done()
				return ctx.Err()
			}
			return err
		},
	}).Build()
	return m
}

func (m *fakeMember) lease(holder string) *lease {
	return &lease{client: m, key: client.ObjectKey{Namespace: "ot-agent", Name: install.LeaseName}, holder: holder, duration: leaseDuration}
}

func (m *fakeMember) stored(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	o := &coordinationv1.Lease{}
	require.NoError(t, m.Get(context.Background(), client.ObjectKey{Namespace: "ot-agent", Name: install.LeaseName}, o))
	return o
}

func advanceTime(d time.Duration) {
	_ = trigger.Sleep(context.Background(), d) // by the clock of the bubble
	synctest.Wait()
}

func TestLeaseIsKeptAndReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeMember()
		l := m.lease("a")
		require.ErrorIs(t, l.Err(), errNotHeld)
		require.NoError(t, l.acquire(t.Context(), nil))
		advanceTime(10 * leaseDuration)
		require.NoError(t, l.Err(), "it is renewed")
		assert.Equal(t, "a", *m.stored(t).Spec.HolderIdentity)
		require.Error(t, m.lease("b").acquire(t.Context(), nil), "who takes it for free is refused")
		l.releaseLease(t.Context())
		require.Error(t, l.Err())
		assert.Empty(t, *m.stored(t).Spec.HolderIdentity)
	})
}

// Whoever waits for its end begins after lasts at the soonest, and a request takes a third
// of that.
func TestUnrenewedLeaseEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeMember()
		l := m.lease("a")
		require.NoError(t, l.acquire(t.Context(), nil))
		var seen leaseObserver
		end := seen.observe("edge", m.stored(t), time.Now())
		require.NotNil(t, end)
		m.cut.Store(true)
		for time.Now().Add(leaseDuration / 3).Before(end.Until) {
			advanceTime(time.Second)
		}
		require.Error(t, l.Err(), "a request that is sent now may arrive after others have begun")
		m.cut.Store(false)
		advanceTime(leaseDuration)
		require.NoError(t, l.Err(), "no other process took it")
		l.releaseLease(t.Context())
	})
}

func TestLeaseIsReleasedDuringRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeMember()
		l := m.lease("a")
		require.NoError(t, l.acquire(t.Context(), nil))
		m.silent.Store(true)
		advanceTime(leaseDuration / 8) // a renewal is stored, and its answer is awaited
		m.silent.Store(false)
		l.releaseLease(t.Context())
		assert.Empty(t, *m.stored(t).Spec.HolderIdentity)
	})
}

func TestRenewalWithoutAnswerKeepsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeMember()
		l := m.lease("a")
		require.NoError(t, l.acquire(t.Context(), nil))
		m.silent.Store(true)
		advanceTime(leaseDuration / 6)
		m.silent.Store(false)
		advanceTime(leaseDuration)
		require.NoError(t, l.Err(), "no other process took it")
		l.releaseLease(t.Context())
		assert.Empty(t, *m.stored(t).Spec.HolderIdentity)
	})
}

func TestTakenLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeMember()
		a, b := m.lease("a"), m.lease("b")
		require.NoError(t, a.acquire(t.Context(), nil))
		require.NoError(t, b.acquire(t.Context(), m.stored(t)))
		advanceTime(leaseDuration / 4)
		require.ErrorContains(t, a.Err(), "another process acquired Lease")
		a.releaseLease(t.Context())
		assert.Equal(t, "b", *m.stored(t).Spec.HolderIdentity, "it is not given away")
		advanceTime(leaseDuration)
		require.NoError(t, b.Err())
		again := m.lease("b")
		require.NoError(t, again.acquire(t.Context(), m.stored(t)))
		advanceTime(leaseDuration / 4)
		require.Error(t, b.Err(), "what the same process takes anew is another Lease")
		require.NoError(t, again.Err())
		b.releaseLease(t.Context())
		again.releaseLease(t.Context())
	})
}

func TestForeignLeaseIsTimedByOwnClock(t *testing.T) {
	var w leaseObserver
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	o := &coordinationv1.Lease{}
	o.UID, o.ResourceVersion = "x", "1"
	o.Spec.HolderIdentity, o.Spec.LeaseDurationSeconds = ptr.To("a"), ptr.To(int32(30))
	assert.Equal(t, &install.Lease{Holder: "a", Until: at.Add(leaseDuration)}, w.observe("edge", o, at), "whatever its own clock says")
	assert.Equal(t, at.Add(leaseDuration), w.observe("edge", o, at.Add(20*time.Second)).Until)
	o.ResourceVersion = "2"
	assert.Equal(t, at.Add(25*time.Second).Add(leaseDuration), w.observe("edge", o, at.Add(25*time.Second)).Until, "it was renewed")
	o.Spec.HolderIdentity = ptr.To("")
	assert.Nil(t, w.observe("edge", o, at))
	assert.Nil(t, w.observe("edge", nil, at))
}

// One process may work on two members that lead to one cluster.
func TestLeaseIsHeldPerMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, r := newFakeMember(), &Reconciler{Process: "hub-1", LeaseDuration: leaseDuration, RequestTimeout: leaseDuration}
		at := func(name string) *memberSession {
			o := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.MemberClusterSpec{AgentNamespace: "ot-agent"}}
			s, err := r.openSession(t.Context(), &rest.Config{Host: "https://127.0.0.1:1"}, o)
			require.NoError(t, err)
			t.Cleanup(s.close)
			s.client, s.lease.client = m, m
			return s
		}
		edge, twin := at("edge"), at("twin")
		require.NoError(t, edge.lease.acquire(t.Context(), nil))
		other, err := r.getForeignLease(t.Context(), twin, "twin")
		require.NoError(t, err)
		require.NotNil(t, other)
		assert.Equal(t, "hub-1/edge", other.Holder)
		own, err := r.getForeignLease(t.Context(), edge, "edge")
		require.NoError(t, err)
		assert.Nil(t, own)
		edge.lease.releaseLease(t.Context())
	})
}
