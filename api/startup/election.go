package startup

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
)

// NewProcessID returns an identity of this process; every start has a new one.
func NewProcessID() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("naming this process: %w", err)
	}
	return host + "_" + string(uuid.NewUUID()), nil
}

// Election is the leader election of a process. It ends the process once another one is
// elected. It is created before the manager, which runs it.
type Election struct {
	program string
	mgr     ctrl.Manager
	lost    chan struct{}
}

// NewElection makes managerOptions elect by the Lease that they name, with process as the
// identity of this one. Clients that are made of s later refuse to write while this process
// is elected and its Lease has expired.
func NewElection(s *APIServer, managerOptions *ctrl.Options, program, process string) (*Election, error) {
	e := &Election{program: program, lost: make(chan struct{}, 1)}
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, managerOptions.LeaderElectionNamespace, managerOptions.LeaderElectionID,
		resourcelock.ResourceLockConfig{Identity: process, EventRecorder: e},
		rest.AddUserAgent(rest.CopyConfig(s.Config), "leader-election"), *managerOptions.RenewDeadline)
	if err != nil {
		return nil, fmt.Errorf("making the lock of the election: %w", err)
	}
	observed := &observedLock{Interface: lock, lost: e.lost, duration: *managerOptions.LeaseDuration, now: time.Now}
	managerOptions.LeaderElectionResourceLockInterface = observed
	s.Config.Wrap(observed.wrapTransport)
	s.Bounded.Wrap(observed.wrapTransport)
	return e, nil
}

// AddTo adds the election to the manager that was created with its lock.
func (e *Election) AddTo(mgr ctrl.Manager) error {
	e.mgr = mgr
	return mgr.Add(e)
}

// Eventf implements resourcelock.EventRecorder.
func (e *Election) Eventf(about runtime.Object, kind, reason, message string, args ...any) {
	NewEventRecorder(e.mgr, e.program).Eventf(about, nil, kind, reason, "Elect", message, args...)
}

// errSuperseded ends a process when another one is elected.
var errSuperseded = errors.New("another replica was elected while this one was, as it may be after a pause")

// Start implements manager.Runnable. It returns errSuperseded once another process is
// elected, which ends this one.
func (e *Election) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-e.lost:
		return errSuperseded
	}
}

// observedLock notices when another process holds the lock. Otherwise client-go tries to
// win a lost election back for its whole renew deadline. A process that was paused for
// longer than its Lease would act beside the new leader for that long: two hubs would share
// out one budget, and two agents would write what the other has just changed.
//
// Even so a resumed process acts on what it missed before the answer about the lock is
// there. Invariant: it sends no write later than the duration of the Lease after it sent
// the last stored renewal; others wait longer than that. What remains is a process that is
// paused between this check and the sending: its one request is guarded by resourceVersion
// and the admission policies.
type observedLock struct {
	resourcelock.Interface
	lost     chan<- struct{}
	duration time.Duration
	now      func() time.Time

	mu         sync.Mutex
	held       bool // by the last write of this process: an orderly end releases it
	superseded bool
	renewed    time.Time // when the last stored renewal was sent
}

// Get implements resourcelock.Interface.
func (l *observedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err == nil && l.recordHolder(record.HolderIdentity) {
		select {
		case l.lost <- struct{}{}:
		default:
		}
	}
	return record, raw, err
}

// recordHolder reports whether another process holds the lock that this one held.
func (l *observedLock) recordHolder(holder string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.superseded = l.superseded || l.held && holder != l.Identity()
	return l.superseded
}

// Create implements resourcelock.Interface.
func (l *observedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	sent := l.now()
	return l.recordWrite(record, sent, l.Interface.Create(ctx, record))
}

// Update implements resourcelock.Interface.
func (l *observedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	sent := l.now()
	return l.recordWrite(record, sent, l.Interface.Update(ctx, record))
}

// recordWrite records whether this process holds the lock, by its own last write.
func (l *observedLock) recordWrite(record resourcelock.LeaderElectionRecord, sent time.Time, err error) error {
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.held, l.renewed = record.HolderIdentity == l.Identity(), sent
	}
	return err
}

// errLeaseExpired is the answer to writes in place of that of the API server.
var errLeaseExpired = errors.New("not sent: the leader election Lease of this process has expired; it writes again once it has renewed the Lease, or ends if another replica was elected")

// checkWrite returns errLeaseExpired while another process may be elected beside this one.
// Of the monotonic and the wall clock the longer counts: the former stops while a virtual
// machine is suspended.
func (l *observedLock) checkWrite() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	since := max(now.Sub(l.renewed), now.Round(0).Sub(l.renewed.Round(0)))
	if l.held && (l.superseded || since >= l.duration) {
		return errLeaseExpired
	}
	return nil
}

func (l *observedLock) wrapTransport(next http.RoundTripper) http.RoundTripper {
	return guardedTransport{next, l}
}

// guardedTransport refuses writes as its lock says.
type guardedTransport struct {
	http.RoundTripper
	lock *observedLock
}

// RoundTrip implements http.RoundTripper.
func (t guardedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet && request.Method != http.MethodHead {
		if err := t.lock.checkWrite(); err != nil {
			if request.Body != nil {
				_ = request.Body.Close()
			}
			return nil, err
		}
	}
	return t.RoundTripper.RoundTrip(request)
}
