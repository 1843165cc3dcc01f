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
)

// leaseName is the Lease that the elected replica holds.
const leaseName = "ot-hub"

// newProcessID is the identity of this process, new for each.
func newProcessID() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("naming this process: %w", err)
	}
	return host + "_" + string(uuid.NewUUID()), nil
}

// newElectionLock makes the lock of the election. The manager's own would give the process
// an identity that nobody else gets to know: the Leases of the replicas tell it.
func newElectionLock(cfg *rest.Config, o options, process string, events *electionWatch) (resourcelock.Interface, error) {
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, o.Namespace, leaseName,
		resourcelock.ResourceLockConfig{Identity: process, EventRecorder: events},
		rest.AddUserAgent(rest.CopyConfig(cfg), "leader-election"), o.RenewDeadline)
	if err != nil {
		return nil, fmt.Errorf("making the lock of the election: %w", err)
	}
	return &observedLock{Interface: lock, lost: events.lost}, nil
}

// electionWatch are what the lock tells, which is there before the manager.
type electionWatch struct {
	mgr  ctrl.Manager
	lost chan struct{}
}

func newElectionWatch() *electionWatch { return &electionWatch{lost: make(chan struct{}, 1)} }

// Eventf implements resourcelock.EventRecorder.
func (e *electionWatch) Eventf(about runtime.Object, kind, reason, message string, args ...any) {
	e.mgr.GetEventRecorder(programName).Eventf(about, nil, kind, reason, "Elect", message, args...)
}

// errSuperseded ends a process in whose place another one is elected.
var errSuperseded = errors.New("another replica was elected while this one was, as it may be after a pause")

// Start implements manager.Runnable: it runs while this process is elected, and ends it
// with all that it does as soon as another one is.
func (e *electionWatch) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-e.lost:
		return errSuperseded
	}
}

// observedLock is a lock that tells when another process has come to hold it. The election
// of client-go tries for its whole renew deadline to get back what it has lost, and
// lets this process plan as long beside the other, where it was paused for longer than
// its Lease: two that share out one budget, and take the MemberLinks from each other.
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

// recordWrite notes whether this process holds the lock by what it has written itself: at its
// end it lets go of it.
func (l *observedLock) recordWrite(record resourcelock.LeaderElectionRecord, err error) error {
	if err == nil {
		l.held.Store(record.HolderIdentity == l.Identity())
	}
	return err
}
