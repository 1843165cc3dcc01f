package election

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"
)

type noEvents struct{}

func (noEvents) Eventf(runtime.Object, string, string, string, ...any) {}

const (
	duration      = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

func newTestLock(s *leaseServer, identity string) (*Lock, *leaseClient) {
	c := &leaseClient{leaseServer: s}
	return NewLock(c, Options{
		Namespace: "ns", Name: "lease", Identity: identity, Duration: duration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, Events: noEvents{},
	}), c
}

// runElector runs client-go's elector until ctx ends. elected is when the lock was taken.
func runElector(ctx context.Context, t *testing.T, l *Lock, elected chan<- time.Time) (ended chan struct{}) {
	t.Helper()
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: l, LeaseDuration: duration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { elected <- time.Now() },
			OnStoppedLeading: func() {},
		},
	})
	require.NoError(t, err)
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		e.Run(ctx)
	}()
	return ended
}

// A candidate takes the Lease of a dead holder when it expires, and that of a live one
// never, whatever its watch delivers and the holder's clock says.
func TestCandidateTakesExpiredLease(t *testing.T) {
	for name, tt := range map[string]struct {
		fault func(holder *Lock, c *leaseClient)
		// mayBeLate: the last renewal is observed late.
		mayBeLate bool
	}{
		"a watch":                         {fault: func(*Lock, *leaseClient) {}},
		"a watch that delivers nothing":   {fault: func(_ *Lock, c *leaseClient) { c.muted = true }, mayBeLate: true},
		"a watch that ends at once":       {fault: func(_ *Lock, c *leaseClient) { c.watchEnds = true }, mayBeLate: true},
		"a watch that is refused":         {fault: func(_ *Lock, c *leaseClient) { c.watchFails = true }, mayBeLate: true},
		"the holder's clock is hours off": {fault: func(l *Lock, _ *leaseClient) { l.now = func() time.Time { return time.Now().Add(-5 * time.Hour) } }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				s := &leaseServer{}
				holder, way := newTestLock(s, "one")
				candidate, candidateWay := newTestLock(s, "two")
				tt.fault(holder, candidateWay)
				elected := make(chan time.Time, 2)
				first := runElector(ctx, t, holder, elected)
				<-elected
				second := runElector(ctx, t, candidate, elected)
				require.NoError(t, sleep(ctx, 10*duration+time.Second))
				require.Empty(t, elected, "the holder renews the Lease")
				polls := candidateWay.gets
				assert.LessOrEqual(t, polls, int(10*duration/retryPeriod)+2, "it polls more often than the Lease is renewed")
				if !tt.mayBeLate {
					assert.LessOrEqual(t, polls, 2, "it polls beside a watch")
				}

				holder.mu.Lock()
				renewed := holder.authority.renewed.Add(time.Since(holder.now()))
				holder.mu.Unlock()
				way.cut = true // the holder is dead
				if tt.mayBeLate {
					assert.LessOrEqual(t, (<-elected).Sub(renewed), duration+2*retryPeriod)
				} else {
					assert.Equal(t, duration, (<-elected).Sub(renewed))
				}
				cancel()
				<-first
				<-second
			})
		})
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// A candidate that was paused judges a Lease by a live read.
func TestPausedCandidateReadsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &leaseServer{}
		s.store(newLease("one"))
		candidate, way := newTestLock(s, "two")
		way.muted = true
		got := make(chan struct{})
		go func() {
			_, _, _ = candidate.Get(ctx)
			close(got)
		}()
		// Each renewal comes just before the candidate would take the Lease.
		for range 10 {
			require.NoError(t, sleep(ctx, duration-time.Millisecond))
			s.mu.Lock()
			s.store(newLease("one"))
			s.mu.Unlock()
		}
		select {
		case <-got:
			require.Fail(t, "it takes a Lease that was renewed")
		default:
		}
		cancel()
		<-got
	})
}

func newLease(holder string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "lease", UID: types.UID("lease")},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: ptr.To(int32(duration / time.Second))},
	}
}

func TestReleasedLeaseIsTakenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &leaseServer{}
		holder, _ := newTestLock(s, "one")
		candidate, _ := newTestLock(s, "two")
		elected := make(chan time.Time, 2)
		leading, end := context.WithCancel(ctx)
		first := runElector(leading, t, holder, elected)
		<-elected
		second := runElector(ctx, t, candidate, elected)
		require.NoError(t, sleep(ctx, 5*duration+time.Second))
		ending := time.Now()
		end()
		assert.Equal(t, ending, <-elected)
		<-first
		assert.Equal(t, ending, candidate.lease.Spec.AcquireTime.Time, "the times of a record are older than the wait")
		cancel()
		<-second
	})
}

// transport answers a request when it is told to.
type transport struct{ answer chan int }

var errBroken = errors.New("the connection broke")

func (s transport) RoundTrip(request *http.Request) (*http.Response, error) {
	select {
	case status := <-s.answer:
		if status == 0 {
			return nil, errBroken
		}
		return &http.Response{StatusCode: status, Body: http.NoBody}, nil
	case <-request.Context().Done():
		return nil, request.Context().Err()
	}
}

func newRequest(ctx context.Context, method, path string) *http.Request {
	return httptest.NewRequestWithContext(ctx, method, path, nil)
}

// A Lease is released only if no write of its holder can be executed any more.
func TestReleaseWaitsForWrites(t *testing.T) {
	for name, tt := range map[string]struct {
		// before the release, during it, with a write that is in flight.
		before, during func(l *Lock, answer chan<- int)
		want           bool
	}{
		"the write is answered":             {during: func(_ *Lock, answer chan<- int) { answer <- http.StatusOK }, want: true},
		"the write is refused":              {during: func(_ *Lock, answer chan<- int) { answer <- http.StatusConflict }, want: true},
		"the connection breaks":             {during: func(_ *Lock, answer chan<- int) { answer <- 0 }},
		"the API server gives up":           {during: func(_ *Lock, answer chan<- int) { answer <- http.StatusGatewayTimeout }},
		"the write is not answered in time": {during: func(*Lock, chan<- int) {}},
		"a write was not answered before": {before: func(_ *Lock, answer chan<- int) {
			answer <- 0
		}},
		"a write was not answered long before": {before: func(l *Lock, answer chan<- int) {
			answer <- 0
			synctest.Wait()
			<-time.After(duration)
			l.authority.renewed = time.Now()
		}, want: true},
		"another process was elected": {before: func(l *Lock, answer chan<- int) {
			answer <- http.StatusOK
			synctest.Wait()
			l.leases.(*leaseClient).store(newLease("two"))
			_, _, _ = l.Get(context.Background())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &leaseServer{}
				l, _ := newTestLock(s, "one")
				record := resourcelock.LeaderElectionRecord{HolderIdentity: "one", LeaseDurationSeconds: int(duration / time.Second)}
				require.NoError(t, l.Create(t.Context(), record))
				answer := make(chan int)
				guarded := l.WrapTransport(transport{answer})
				go func() {
					response, err := guarded.RoundTrip(newRequest(t.Context(), http.MethodPut, "/api"))
					if err == nil {
						_ = response.Body.Close()
					}
				}()
				synctest.Wait()
				if tt.before != nil {
					tt.before(l, answer)
				}
				synctest.Wait()
				released := make(chan error, 1)
				ctx, cancel := context.WithTimeout(t.Context(), renewDeadline)
				defer cancel()
				go func() { released <- l.Update(ctx, resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1}) }()
				synctest.Wait()
				if tt.during != nil {
					assert.Empty(t, released, "a write is in flight")
					tt.during(l, answer)
				}
				if err := <-released; tt.want {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, errNotReleased)
				}
				assert.Equal(t, tt.want, ptr.Deref(s.lease.Spec.HolderIdentity, "") == "")
				_, err := guarded.RoundTrip(newRequest(t.Context(), http.MethodPut, "/api")) //nolint:bodyclose // there is none
				require.ErrorIs(t, err, errReleased, "the next leader may act already")
				answered := make(chan int, 1)
				answered <- http.StatusOK
				response, err := l.WrapTransport(transport{answered}).RoundTrip(newRequest(t.Context(), http.MethodPost, "/apis/events.k8s.io/v1/namespaces/ns/events"))
				require.NoError(t, err, "events say that it has ended")
				require.NoError(t, response.Body.Close())
				synctest.Wait()
				select { // the write that was never answered
				case answer <- http.StatusOK:
				default:
				}
			})
		})
	}
}

// A write that is given up by its caller is waited for: its outcome decides whether the
// Lease can be released.
func TestWriteOutlivesItsContext(t *testing.T) {
	for name, tt := range map[string]struct {
		answeredAfter time.Duration
		want          error
	}{
		"answered": {answerGrace - time.Second, nil},
		"given up": {answerGrace + time.Second, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _ := newTestLock(&leaseServer{}, "one")
				answer := make(chan int, 1)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() {
					response, err := l.WrapTransport(transport{answer}).RoundTrip(newRequest(ctx, http.MethodPut, "/api"))
					if err == nil {
						err = response.Body.Close()
					}
					ended <- err
				}()
				synctest.Wait()
				cancel()
				require.NoError(t, sleep(t.Context(), tt.answeredAfter))
				answer <- http.StatusOK
				require.ErrorIs(t, <-ended, tt.want)
				assert.Equal(t, tt.want != nil, !l.authority.unanswered.IsZero())
				assert.Zero(t, l.authority.inFlight)
				_, err := l.WrapTransport(transport{answer}).RoundTrip(newRequest(ctx, http.MethodPut, "/api")) //nolint:bodyclose // there is none
				require.ErrorIs(t, err, context.Canceled, "a write of a context that has ended does not begin")
			})
		})
	}
}

func heldBy(process string) resourcelock.LeaderElectionRecord {
	return resourcelock.LeaderElectionRecord{HolderIdentity: process, LeaseDurationSeconds: int(duration / time.Second)}
}

// read reads the Lease as the holder does.
func (l *Lock) read(t *testing.T) {
	t.Helper()
	_, _, err := l.Get(t.Context())
	require.NoError(t, err)
}

// A holder that finds another one elected ends at once.
func TestSupersededProcessEnds(t *testing.T) {
	s := &leaseServer{}
	one, _ := newTestLock(s, "one")
	two, _ := newTestLock(s, "two")
	require.NoError(t, one.Create(t.Context(), heldBy("one")))
	one.read(t)
	require.Empty(t, one.Lost(), "it is elected")
	require.NoError(t, two.readLease(t.Context()))
	require.Empty(t, two.Lost(), "it waits")

	require.NoError(t, two.Update(t.Context(), heldBy("two")))
	two.read(t)
	require.Empty(t, two.Lost(), "it has succeeded")
	require.Error(t, one.Update(t.Context(), heldBy("one")), "it was paused meanwhile")
	one.read(t)
	require.NotEmpty(t, one.Lost())
}

// A resumed process acts on what it missed before it knows whether it is still elected.
func TestExpiredLeaderWritesNothing(t *testing.T) {
	started := time.Now()
	for name, test := range map[string]struct {
		events func(t *testing.T, one, two *Lock, now *time.Time)
		want   error
	}{
		"never a candidate": {func(*testing.T, *Lock, *Lock, *time.Time) {}, nil},
		"a candidate that waits": {func(t *testing.T, one, two *Lock, now *time.Time) {
			require.NoError(t, two.Create(t.Context(), heldBy("two")))
			require.NoError(t, one.readLease(t.Context()))
			*now = started.Add(time.Hour)
		}, nil},
		"a valid Lease": {func(t *testing.T, one, _ *Lock, now *time.Time) {
			require.NoError(t, one.Create(t.Context(), heldBy("one")))
			*now = started.Add(duration - 1)
		}, nil},
		"an expired Lease": {func(t *testing.T, one, _ *Lock, now *time.Time) {
			require.NoError(t, one.Create(t.Context(), heldBy("one")))
			*now = started.Add(duration)
		}, errLeaseExpired},
		"the monotonic clock stopped": {func(t *testing.T, one, _ *Lock, now *time.Time) {
			require.NoError(t, one.Create(t.Context(), heldBy("one")))
			*now = started.Round(0).Add(duration)
		}, errLeaseExpired},
		"renewed late": {func(t *testing.T, one, _ *Lock, now *time.Time) {
			require.NoError(t, one.Create(t.Context(), heldBy("one")))
			*now = started.Add(time.Hour)
			require.NoError(t, one.Update(t.Context(), heldBy("one")))
		}, nil},
		"a renewal that failed": {func(t *testing.T, one, two *Lock, now *time.Time) {
			require.NoError(t, one.Create(t.Context(), heldBy("one")))
			require.NoError(t, two.readLease(t.Context()))
			*now = started.Add(duration)
			require.NoError(t, two.Update(t.Context(), heldBy("two")))
			require.Error(t, one.Update(t.Context(), heldBy("one")))
		}, errLeaseExpired},
		"superseded early": {func(t *testing.T, one, two *Lock, _ *time.Time) {
			require.NoError(t, one.Create(t.Context(), heldBy("one")))
			require.NoError(t, two.readLease(t.Context()))
			require.NoError(t, two.Update(t.Context(), heldBy("two")))
			one.read(t)
		}, errLeaseExpired},
		"released": {func(t *testing.T, one, _ *Lock, _ *time.Time) {
			require.NoError(t, one.Create(t.Context(), heldBy("one")))
			require.NoError(t, one.Update(t.Context(), heldBy("")))
		}, errReleased},
	} {
		t.Run(name, func(t *testing.T) {
			s, now := &leaseServer{}, started
			one, _ := newTestLock(s, "one")
			two, _ := newTestLock(s, "two")
			one.now = func() time.Time { return now }
			test.events(t, one, two, &now)
			answer := make(chan int, 1)
			guarded := one.WrapTransport(transport{answer})
			for method, want := range map[string]error{http.MethodPost: test.want, http.MethodPatch: test.want, http.MethodDelete: test.want, http.MethodGet: nil} {
				if want == nil {
					answer <- http.StatusOK
				}
				response, err := guarded.RoundTrip(newRequest(t.Context(), method, "/api"))
				require.ErrorIs(t, err, want, method)
				if err == nil {
					require.NoError(t, response.Body.Close())
				}
			}
		})
	}
}

// client-go continues for its renew deadline after an election is lost. Lock.Lost exists
// because of that, and can go when this test fails.
func TestClientGoNoticesLostElectionLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &leaseServer{}
		one, _ := newTestLock(s, "one")
		elected := make(chan time.Time, 1)
		stopped := runElector(ctx, t, one, elected)
		<-elected
		s.mu.Lock()
		s.store(newLease("two"))
		s.mu.Unlock()
		<-one.Lost()
		select {
		case <-stopped:
			assert.Fail(t, "client-go tells by itself")
		default:
		}
		cancel()
		<-stopped
		assert.Equal(t, "two", *s.lease.Spec.HolderIdentity, "it releases the Lease of another process")
	})
}
