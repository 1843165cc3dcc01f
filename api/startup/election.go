package startup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

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
// identity of this one.
func NewElection(cfg *rest.Config, managerOptions *ctrl.Options, program, process string) (*Election, error) {
	e := &Election{program: program, lost: make(chan struct{}, 1)}
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, managerOptions.LeaderElectionNamespace, managerOptions.LeaderElectionID,
		resourcelock.ResourceLockConfig{Identity: process, EventRecorder: e},
		rest.AddUserAgent(rest.CopyConfig(cfg), "leader-election"), *managerOptions.RenewDeadline)
	if err != nil {
		return nil, fmt.Errorf("making the lock of the election: %w", err)
	}
	managerOptions.LeaderElectionResourceLockInterface = &observedLock{Interface: lock, lost: e.lost}
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
type observedLock struct {
	resourcelock.Interface
	held atomic.Bool
	lost chan<- struct{}
}

// Get implements resourcelock.Interface.
func (l *observedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err == nil && l.held.Load() && record.HolderIdentity != l.Identity() {
		select {
		case l.lost <- struct{}{}:
		default:
		}
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *observedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.recordWrite(record, l.Interface.Create(ctx, record))
}

// Update implements resourcelock.Interface.
func (l *observedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.recordWrite(record, l.Interface.Update(ctx, record))
}

// recordWrite records whether this process holds the lock, by its own last write: an
// orderly end releases it.
func (l *observedLock) recordWrite(record resourcelock.LeaderElectionRecord, err error) error {
	if err == nil {
		l.held.Store(record.HolderIdentity == l.Identity())
	}
	return err
}
