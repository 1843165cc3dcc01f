package startup

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// memoryLease is the lock of an election in memory. A leaseHandle is that of one process;
// it writes over what it last read.
type memoryLease struct {
	mu      sync.Mutex
	record  resourcelock.LeaderElectionRecord
	version int
}

type leaseHandle struct {
	*memoryLease
	resourcelock.Interface
	process string
	read    int
}

func (h *leaseHandle) Identity() string   { return h.process }
func (h *leaseHandle) Describe() string   { return "a lease in memory" }
func (h *leaseHandle) RecordEvent(string) {}

func (h *leaseHandle) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.read = h.version
	record := h.record
	return &record, []byte(fmt.Sprint(record)), nil
}

func (h *leaseHandle) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return h.Update(ctx, record)
}

func (h *leaseHandle) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.read != h.version {
		return errors.New("somebody else was faster")
	}
	h.version++
	h.record, h.read = record, h.version
	return nil
}

// newCandidate returns a candidate with its lock.
func newCandidate(l *memoryLease, process string) (*observedLock, *Election) {
	e := &Election{lost: make(chan struct{}, 1)}
	return &observedLock{Interface: &leaseHandle{memoryLease: l, process: process}, lost: e.lost, duration: time.Hour, now: time.Now}, e
}

func heldBy(process string) resourcelock.LeaderElectionRecord {
	return resourcelock.LeaderElectionRecord{HolderIdentity: process}
}

// A leader that finds another one elected ends at once; a candidate that is waiting does
// not.
func TestSupersededProcessEnds(t *testing.T) {
	l := &memoryLease{}
	one, first := newCandidate(l, "one")
	two, second := newCandidate(l, "two")
	get := func(l *observedLock) {
		_, _, err := l.Get(t.Context())
		require.NoError(t, err)
	}
	ends := func(e *Election) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if len(e.lost) == 0 {
			cancel()
		}
		return e.Start(ctx)
	}

	require.NoError(t, one.Create(t.Context(), heldBy("one")))
	get(one)
	get(two)
	require.NoError(t, ends(first), "it is elected")
	require.NoError(t, ends(second), "it waits")

	require.NoError(t, two.Update(t.Context(), heldBy("two")))
	get(two)
	require.NoError(t, ends(second), "it has succeeded")
	require.Error(t, one.Update(t.Context(), heldBy("one")), "it was paused meanwhile")
	get(one)
	require.ErrorIs(t, ends(first), errSuperseded)

	require.NoError(t, two.Update(t.Context(), heldBy("")), "it released the lock")
	get(two)
	require.NoError(t, ends(second), "and ends by itself")
}

type answerOK struct{}

func (answerOK) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// A resumed process acts on what it missed before it knows whether it is still elected.
func TestExpiredLeaderWritesNothing(t *testing.T) {
	const duration = 15 * time.Second
	started := time.Now()
	for name, test := range map[string]struct {
		events func(t *testing.T, one, two *observedLock, now *time.Time)
		want   error
	}{
		"never a candidate": {func(*testing.T, *observedLock, *observedLock, *time.Time) {}, nil},
		"a candidate that waits": {func(t *testing.T, one, two *observedLock, now *time.Time) {
			require.NoError(t, two.Create(t.Context(), heldBy("two")))
			_, _, err := one.Get(t.Context())
			require.NoError(t, err)
			*now = started.Add(time.Hour)
		}, nil},
		"a valid Lease": {func(t *testing.T, one, _ *observedLock, now *time.Time) {
			require.NoError(t, one.Create(t.Context(), heldBy("one")))
			*now = started.Add(duration - 1)
		}, nil},
		"an expired Lease": {func(t *testing.T, one, _ *observedLock, now *time.Time) {
			require.NoError(t, one.Create(t.Context(), heldBy("one")))
			*now = started.Add(duration)
		}, errLeaseExpired},
		"the monotonic clock stopped": {func(t *testing.T, one, _ *observedLock, now *time.Time) {
			require.NoError(t, one.Create(t.Context(), heldBy("one")))
			*now = started.Round(0).Add(duration)
		}, errLeaseExpired},
		"renewed late": {func(t *testing.T, one, _ *observedLock, now *time.Time) {
			require.NoError(t, one.Create(t.Context(), heldBy("one")))
			*now = started.Add(time.Hour)
			require.NoError(t, one.Update(t.Context(), heldBy("one")))
		}, nil},
		"a renewal that failed": {func(t *testing.T, one, two *observedLock, now *time.Time) {
			require.NoError(t, one.Create(t.Context(), heldBy("one")))
			_, _, err := two.Get(t.Context())
			require.NoError(t, err)
			*now = started.Add(duration)
			require.NoError(t, two.Update(t.Context(), heldBy("two")))
			require.Error(t, one.Update(t.Context(), heldBy("one")))
		}, errLeaseExpired},
		"superseded early": {func(t *testing.T, one, two *observedLock, _ *time.Time) {
			require.NoError(t, one.Create(t.Context(), heldBy("one")))
			_, _, err := two.Get(t.Context())
			require.NoError(t, err)
			require.NoError(t, two.Update(t.Context(), heldBy("two")))
			_, _, err = one.Get(t.Context())
			require.NoError(t, err)
		}, errLeaseExpired},
		"released": {func(t *testing.T, one, _ *observedLock, now *time.Time) {
			require.NoError(t, one.Create(t.Context(), heldBy("one")))
			require.NoError(t, one.Update(t.Context(), heldBy("")))
			*now = started.Add(time.Hour)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			l, now := &memoryLease{}, started
			one, _ := newCandidate(l, "one")
			two, _ := newCandidate(l, "two")
			one.duration, one.now = duration, func() time.Time { return now }
			test.events(t, one, two, &now)
			transport := one.wrapTransport(answerOK{})
			for method, want := range map[string]error{http.MethodPost: test.want, http.MethodPatch: test.want, http.MethodDelete: test.want, http.MethodGet: nil} {
				response, err := transport.RoundTrip(httptest.NewRequest(method, "/api", nil))
				require.ErrorIs(t, err, want, method)
				if err == nil {
					require.NoError(t, response.Body.Close())
				}
			}
		})
	}
}

// client-go continues for its renew deadline after an election is lost. observedLock
// exists because of that, and can go when this test fails.
func TestClientGoNoticesLostElectionLate(t *testing.T) {
	l := &memoryLease{}
	one, e := newCandidate(l, "one")
	two, _ := newCandidate(l, "two")
	stopped := make(chan struct{})
	started := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: one, LeaseDuration: time.Hour, RenewDeadline: 30 * time.Minute, RetryPeriod: 10 * time.Millisecond,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(started) },
			OnStoppedLeading: func() { close(stopped) },
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	go elector.Run(ctx)
	<-started
	require.Eventually(t, func() bool { // the Lease is renewed all the time
		_, _, err := two.Get(t.Context())
		return err == nil && two.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "two", LeaseDurationSeconds: 3600}) == nil
	}, time.Minute, time.Millisecond)
	require.ErrorIs(t, e.Start(t.Context()), errSuperseded)
	select {
	case <-stopped:
		assert.Fail(t, "client-go tells by itself")
	default:
	}
	cancel()
	<-stopped
}
