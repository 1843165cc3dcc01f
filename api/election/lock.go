package election

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Options of a Lock.
type Options struct {
	Namespace, Name string
	// Identity of this process; every start has a new one.
	Identity string
	// Duration of the Lease, RenewDeadline and RetryPeriod of the elector.
	Duration, RenewDeadline, RetryPeriod time.Duration
	Events                               resourcelock.EventRecorder
}

// Lock is a resourcelock.Interface over a Lease. The elector calls its methods one at a
// time; RoundTrippers of WrapTransport run beside them.
//
// It notices when another process holds the Lease. Otherwise client-go tries to win a lost
// election back for its whole renew deadline. A process that was paused for longer than its
// Lease would act beside the new leader for that long: two hubs would share out one budget,
// and two agents would write what the other has just changed.
//
// What remains is a process that is paused between the check of a write and its sending:
// that one request is guarded by resourceVersion and the admission policies.
type Lock struct {
	Options
	leases coordinationclient.LeaseInterface
	now    func() time.Time
	// lease is the Lease as last read or written, acquired when this process took it.
	lease    *coordinationv1.Lease
	acquired metav1.MicroTime
	observed observation

	mu        sync.Mutex
	authority authority
	// ended is signalled when no write is in flight.
	ended chan struct{}
	lost  chan struct{}
}

// NewLock returns a Lock that does not hold its Lease. The client must not end watches by
// a timeout.
func NewLock(leases coordinationclient.LeasesGetter, o Options) *Lock {
	return &Lock{
		Options: o, leases: leases.Leases(o.Namespace), now: time.Now, authority: authority{duration: o.Duration},
		ended: make(chan struct{}, 1), lost: make(chan struct{}, 1),
	}
}

// Lost receives a value once another process holds the Lease that this process held.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// requestTimeout bounds one request, as client-go does for its own locks.
func (l *Lock) requestTimeout() time.Duration { return max(time.Second, l.RenewDeadline/2) }

// Get implements resourcelock.Interface. As a candidate it returns once the Lease can be
// taken, without a holder then, or when ctx ends.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.mu.Lock()
	held := l.authority.held
	l.mu.Unlock()
	free := false
	var err error
	if held {
		err = l.readLease(ctx)
	} else {
		free, err = l.awaitTurn(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&l.lease.Spec)
	l.mu.Lock()
	superseded := l.authority.recordHolder(record.HolderIdentity == l.Options.Identity)
	l.mu.Unlock()
	if superseded {
		select {
		case l.lost <- struct{}{}:
		default:
		}
	}
	if free {
		record.HolderIdentity = ""
	}
	raw, err := json.Marshal(record)
	return record, raw, err
}

// readLease reads the Lease live.
func (l *Lock) readLease(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.requestTimeout())
	defer cancel()
	lease, err := l.leases.Get(ctx, l.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	l.lease = lease
	l.observed.record(lease, l.now())
	return nil
}

// Create implements resourcelock.Interface.
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name}}, func(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
		return l.leases.Create(ctx, lease, metav1.CreateOptions{})
	})
}

// Update implements resourcelock.Interface. It writes over the Lease that was last read or
// written. A record without a holder releases the Lease, where that is safe.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		if err := l.prepareRelease(ctx); err != nil {
			return err
		}
	}
	return l.write(ctx, record, l.lease.DeepCopy(), func(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
		return l.leases.Update(ctx, lease, metav1.UpdateOptions{})
	})
}

// write stores a record in the Lease. client-go takes the times of a record before it calls
// Get, which may have waited since.
func (l *Lock) write(ctx context.Context, record resourcelock.LeaderElectionRecord, lease *coordinationv1.Lease, store func(context.Context, *coordinationv1.Lease) (*coordinationv1.Lease, error)) error {
	ctx, cancel := context.WithTimeout(ctx, l.requestTimeout())
	defer cancel()
	sent := l.now()
	lease.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
	lease.Spec.RenewTime = &metav1.MicroTime{Time: sent}
	l.mu.Lock()
	if !l.authority.held {
		l.acquired = *lease.Spec.RenewTime
	}
	l.mu.Unlock()
	lease.Spec.AcquireTime = &l.acquired
	stored, err := store(ctx, lease)
	if err != nil {
		return err
	}
	l.lease = stored
	if record.HolderIdentity == l.Options.Identity {
		l.mu.Lock()
		l.authority.recordRenewal(sent)
		l.mu.Unlock()
	}
	return nil
}

// prepareRelease has no write begin any more, waits for those in flight, and returns nil if
// the Lease may be released.
func (l *Lock) prepareRelease(ctx context.Context) error {
	for {
		l.mu.Lock()
		l.authority.close()
		inFlight, safe := l.authority.inFlight, l.authority.mayRelease(l.now())
		l.mu.Unlock()
		switch {
		case safe:
			return nil
		case inFlight == 0:
			return errNotReleased
		}
		select {
		case <-l.ended:
		case <-ctx.Done():
			return errNotReleased
		}
	}
}

// RecordEvent implements resourcelock.Interface.
func (l *Lock) RecordEvent(what string) {
	about := &coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"}}
	if l.lease != nil {
		about.ObjectMeta = l.lease.ObjectMeta
	}
	l.Events.Eventf(about, corev1.EventTypeNormal, "LeaderElection", "%s %s", l.Options.Identity, what)
}

// Identity implements resourcelock.Interface.
func (l *Lock) Identity() string { return l.Options.Identity }

// Describe implements resourcelock.Interface.
func (l *Lock) Describe() string { return l.Namespace + "/" + l.Name }
