package shard

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var options = Options{Name: "one", Namespace: "ot-hub", LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}

func linkAssignedTo(replica string) *v1alpha1.MemberLink {
	return &v1alpha1.MemberLink{Spec: v1alpha1.MemberLinkSpec{Mode: v1alpha1.LinkPush, Replica: replica}}
}

// fakeAPIServer is an API server that can be cut off, or that stores updates and does not answer.
type fakeAPIServer struct {
	client.Client
	cut, silent bool
}

var errCut = errors.New("cut off")

func newFakeAPIServer() *fakeAPIServer {
	s := &fakeAPIServer{}
	s.Client = interceptor.NewClient(fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build(), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if s.cut {
				return errCut
			}
			return c.Get(ctx, key, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if s.cut {
				return errCut
			}
			err := c.Update(ctx, o, opts...)
			if s.silent {
				<-ctx.Done()
				return ctx.Err()
			}
			return err
		},
	})
	return s
}

func (s *fakeAPIServer) lease(t *testing.T) (*coordinationv1.Lease, error) {
	t.Helper()
	lease := &coordinationv1.Lease{}
	return lease, s.Client.Get(t.Context(), client.ObjectKey{Namespace: "ot-hub", Name: readapi.LeasePrefix + "one"}, lease)
}

// startReplica starts a replica, and returns once that has written its Lease or failed to. stop ends
// it and returns the result of Start.
func startReplica(t *testing.T, r *Replica) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Start(ctx) }()
	synctest.Wait()
	return func() error {
		cancel()
		return <-ended
	}
}

// A machine that has slept, or a clock that is set forward, ends the right to sync by the wall clock alone. What
// is stopped in that moment starts again with the next renewal.
func TestClockThatJumpsIsNotified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewReplica(newFakeAPIServer(), options)
		var held []bool
		r.OnLeaseChange(func() { held = append(held, r.HoldsLease()) })
		stop := startReplica(t, r)
		require.Equal(t, []bool{true}, held)
		r.mu.Lock()
		r.untilWall = r.untilWall.Add(-time.Hour)
		r.mu.Unlock()
		assert.False(t, r.OwnsMember(linkAssignedTo("one")))
		require.NoError(t, trigger.Sleep(t.Context(), options.RetryPeriod))
		synctest.Wait()
		assert.True(t, r.OwnsMember(linkAssignedTo("one")))
		assert.Equal(t, []bool{true, true}, held)
		require.NoError(t, stop())
	})
}

func TestReplicaStopsAtItsOwnDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeAPIServer()
		r := NewReplica(s, options)
		changes := 0
		r.OnLeaseChange(func() { changes++ })
		assert.False(t, r.OwnsMember(linkAssignedTo("one")), "it holds no Lease yet")
		stop := startReplica(t, r)
		require.NoError(t, trigger.Sleep(t.Context(), time.Minute))
		assert.True(t, r.OwnsMember(linkAssignedTo("one")))
		assert.False(t, r.OwnsMember(linkAssignedTo("two")))
		assert.False(t, r.OwnsMember(nil))
		assert.False(t, r.OwnsMember(&v1alpha1.MemberLink{Spec: v1alpha1.MemberLinkSpec{Mode: v1alpha1.LinkPull, Replica: "one"}}))
		assert.Equal(t, 1, changes)
		during, done := r.WhileHoldingLease(t.Context())
		defer done()

		s.cut = true
		require.NoError(t, trigger.Sleep(t.Context(), 7*time.Second))
		assert.True(t, r.OwnsMember(linkAssignedTo("one")), "it tries on")
		require.NoError(t, during.Err())
		require.NoError(t, trigger.Sleep(t.Context(), 4*time.Second))
		assert.False(t, r.OwnsMember(linkAssignedTo("one")), "sooner than the others take it for dead")
		require.Error(t, during.Err())
		assert.Equal(t, 2, changes)

		s.cut = false
		require.NoError(t, trigger.Sleep(t.Context(), 3*time.Second))
		assert.True(t, r.OwnsMember(linkAssignedTo("one")), "it continues once it can")
		assert.Equal(t, 3, changes)

		require.NoError(t, stop())
		assert.False(t, r.OwnsMember(linkAssignedTo("one")))
		_, err := s.lease(t)
		assert.True(t, apierrors.IsNotFound(err), "no replica waits for the Lease of one that ended in order")
	})
}

func TestReplicaEndsDuringRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeAPIServer()
		stop := startReplica(t, NewReplica(s, options))
		s.silent = true
		require.NoError(t, trigger.Sleep(t.Context(), options.RetryPeriod))
		synctest.Wait() // a renewal is stored, and its answer is awaited
		require.NoError(t, stop())
		_, err := s.lease(t)
		assert.True(t, apierrors.IsNotFound(err), "its Lease is left to expire")
	})
}

func TestReplacedReplicaLeavesLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeAPIServer()
		stop := startReplica(t, NewReplica(s, options))
		lease, err := s.lease(t)
		require.NoError(t, err)
		lease.Spec.HolderIdentity = ptr.To("another process")
		require.NoError(t, s.Client.Update(t.Context(), lease))
		require.NoError(t, stop())
		_, err = s.lease(t)
		require.NoError(t, err, "the Lease of the process that replaced it was deleted")
	})
}

// A process that was paused checks before its timers have run.
func TestPausedReplicaOwnsNothing(t *testing.T) {
	r := NewReplica(newFakeAPIServer(), options)
	r.mu.Lock()
	r.until, r.untilWall = time.Now().Add(-time.Millisecond), time.Now().Add(time.Hour)
	r.notifiedHolding = true // nobody was notified yet
	r.mu.Unlock()
	assert.False(t, r.OwnsMember(linkAssignedTo("one")))
}

// The monotonic clock stands still while the machine sleeps, and the wall clock is set.
func TestReplicaUsesClockWithLessTimeLeft(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		until, untilWall time.Duration
		want             bool
	}{
		"in time":                      {time.Second, time.Second, true},
		"the process was stopped":      {-time.Second, -time.Second, false},
		"the machine slept":            {time.Second, -time.Second, false},
		"the clock was set back":       {-time.Second, time.Hour, false},
		"the clock was set back a bit": {time.Second, time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewReplica(newFakeAPIServer(), options)
			r.until, r.untilWall = now.Add(tt.until), now.Add(tt.untilWall).Round(0)
			assert.Equal(t, tt.want, r.remaining(now) > 0)
		})
	}
}

// A replica that cannot write its Lease classifies itself dead no later than others do,
// even if it never could.
func TestReplicaClassifiesItselfDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeAPIServer()
		s.cut = true
		r := NewReplica(s, options)
		stop := startReplica(t, r)
		require.NoError(t, trigger.Sleep(t.Context(), 13*time.Second))
		assert.Equal(t, PeerUnknown, r.State(), "it may be about to")
		require.NoError(t, trigger.Sleep(t.Context(), 4*time.Second))
		assert.Equal(t, PeerDead, r.State())
		s.cut = false
		require.NoError(t, trigger.Sleep(t.Context(), 3*time.Second))
		assert.Equal(t, PeerAlive, r.State())

		s.cut = true
		require.NoError(t, trigger.Sleep(t.Context(), 20*time.Second))
		assert.Equal(t, PeerUnknown, r.State())
		require.NoError(t, trigger.Sleep(t.Context(), 10*time.Second))
		assert.Equal(t, PeerDead, r.State())
		require.NoError(t, stop())
	})
}

func TestReplicaYieldsToSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeAPIServer()
		old, successor := NewReplica(s, options), NewReplica(s, options)
		stopOld := startReplica(t, old)
		require.True(t, old.HoldsLease())
		stop := startReplica(t, successor)
		assert.True(t, successor.HoldsLease(), "it need not wait")
		require.NoError(t, trigger.Sleep(t.Context(), 2*options.RetryPeriod))
		require.ErrorIs(t, stopOld(), errReplaced)
		assert.False(t, old.HoldsLease())
		lease, err := s.lease(t)
		require.NoError(t, err)
		assert.Equal(t, successor.Challenge(), *lease.Spec.HolderIdentity)
		require.NoError(t, stop())
	})
}
