package main

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

	"github.com/pelotech/ot-fleet/api/startup"
)

// leaseName is the Lease of the leader election.
const leaseName = "ot-hub"

// newProcessID returns an identity of this process; every start has a new one.
func newProcessID() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("naming this process: %w", err)
	}
	return host + "_" + string(uuid.NewUUID()), nil
}

// newElectionLock makes the lock of the election with the identity of this process, which
// the Leases of the replicas show. The manager would choose an identity of its own.
func newElectionLock(cfg *rest.Config, o options, process string, events *electionWatch) (resourcelock.Interface, error) {
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, o.Namespace, leaseName,
		resourcelock.ResourceLockConfig{Identity: process, EventRecorder: events},
		rest.AddUserAgent(rest.CopyConfig(cfg), "leader-election"), o.RenewDeadline)
	if err != nil {
		return nil, fmt.Errorf("making the lock of the election: %w", err)
	}
	return &observedLock{Interface: lock, lost: events.lost}, nil
}

// electionWatch records the events of the lock, and ends this process when it loses the
// election. It is created before the manager.
type electionWatch struct {
	mgr  ctrl.Manager
	lost chan struct{}
}

func newElectionWatch() *electionWatch { return &electionWatch{lost: make(chan struct{}, 1)} }

// Eventf implements resourcelock.EventRecorder.
func (e *electionWatch) Eventf(about runtime.Object, kind, reason, message string, args ...any) {
	startup.NewEventRecorder(e.mgr, programName).Eventf(about, nil, kind, reason, "Elect", message, args...)
}

// errSuperseded ends a process when another one is elected.
var errSuperseded = errors.New("another replica was elected while this one was, as it may be after a pause")

// Start implements manager.Runnable. It returns errSuperseded once another process is
// elected, which ends this one.
func (e *electionWatch) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-e.lost:
		return errSuperseded
	}
}

// observedLock notices when another process holds the lock. Otherwise client-go tries to
// win a lost election back for its whole renew deadline. A process that was paused for
// longer than its Lease would plan beside the new leader for that long, and both would
// share out one budget and take MemberLinks from each other.
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
