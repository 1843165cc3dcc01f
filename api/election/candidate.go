package election

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/trigger"
)

// awaitTurn returns true once the Lease can be taken, and false if this process already
// holds it, by a write whose answer was lost, or ctx ends. It returns an error if there is
// no Lease.
//
// Invariant: the Lease is judged by a live read, after a watch or a timer has woken this
// process. A paused candidate would otherwise take a Lease that was renewed meanwhile.
func (l *Lock) awaitTurn(ctx context.Context) (free bool, err error) {
	for {
		err := l.readLease(ctx)
		switch {
		case apierrors.IsNotFound(err), ctx.Err() != nil && l.lease == nil:
			return false, err
		case ctx.Err() != nil:
			return false, nil
		case err != nil:
			_ = trigger.Sleep(ctx, l.RetryPeriod)
			continue
		case ptr.Deref(l.lease.Spec.HolderIdentity, "") == l.Options.Identity:
			return false, nil
		case l.observed.remaining(l.now()) == 0:
			return true, nil
		}
		l.followLease(ctx)
	}
}

// followLease watches the Lease from the version that was read. It returns when the Lease
// is released, deleted or about to expire, when a renewal is overdue, which may be because
// the watch delivers nothing, or when the watch ends.
func (l *Lock) followLease(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Otherwise an API server that does not answer would keep this process past the expiry.
	opening := time.AfterFunc(min(l.requestTimeout(), l.observed.remaining(l.now())), cancel)
	w, err := l.leases.Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", l.Name).String(), ResourceVersion: l.lease.ResourceVersion,
	})
	opening.Stop()
	if err != nil {
		l.pause(ctx)
		return
	}
	defer w.Stop()
	for first := true; ; first = false {
		now := l.now()
		remaining := l.observed.remaining(now)
		if remaining == 0 {
			return
		}
		overdue := max(l.RetryPeriod, l.observed.since.Add(2*l.RetryPeriod).Sub(now))
		timer := time.NewTimer(min(remaining, overdue))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case event, open := <-w.ResultChan():
			timer.Stop()
			lease, isLease := event.Object.(*coordinationv1.Lease)
			switch {
			case open && isLease && event.Type != watch.Deleted:
				l.observed.record(lease, l.now())
			case first && event.Type != watch.Deleted: // a watch that fails at once must not be repeated at once
				l.pause(ctx)
				return
			default:
				return
			}
		}
	}
}

// pause waits for RetryPeriod, or until the Lease expires or ctx ends.
func (l *Lock) pause(ctx context.Context) {
	_ = trigger.Sleep(ctx, min(l.RetryPeriod, l.observed.remaining(l.now())))
}
