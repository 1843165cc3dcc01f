package install

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/hub/install"
)

// lease is the Lease in a member under which a process installs. Others take it for
// expired when they have not seen it change for its duration. Its holder stops half of
// the duration after it sent the last stored renewal, by its own clock; its last request,
// which may take a third of the duration, has ended by then.
//
// What remains: a process that is paused between Err and sending sends that one request
// after another process has begun. It may undo a change of the other. Of the releases
// that both make one is refused, since they have the same number.
type lease struct {
	client   client.Client
	key      client.ObjectKey
	holder   string
	duration time.Duration

	mu    sync.Mutex
	held  *coordinationv1.Lease
	until time.Time
	lost  error
	stop  func()
}

var errNotHeld = errors.New("the Lease is not held")

// Err returns why nothing may be changed in the member; nil while the Lease is certainly
// held.
func (l *lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.lost != nil:
		return fmt.Errorf("the member must no longer be changed: %w", l.lost)
	case l.held == nil:
		return errNotHeld
	case !time.Now().Before(l.until):
		return fmt.Errorf("the member must no longer be changed: Lease %s was not renewed in time", l.key)
	}
	return nil
}

// acquire takes the Lease as it was observed, nil for none, and renews it until release
// or the end of ctx. It fails if another process was faster.
func (l *lease) acquire(ctx context.Context, observed *coordinationv1.Lease) error {
	next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.key.Namespace, Name: l.key.Name}}
	if observed != nil {
		next = observed.DeepCopy()
	}
	sent := time.Now()
	l.stampRenewal(next, sent)
	next.Spec.AcquireTime = next.Spec.RenewTime
	next.Spec.LeaseTransitions = ptr.To(ptr.Deref(next.Spec.LeaseTransitions, 0) + 1)
	do := func() error { return l.client.Create(ctx, next) }
	if observed != nil {
		do = func() error { return l.client.Update(ctx, next) }
	}
	if err := do(); err != nil {
		return fmt.Errorf("acquiring Lease %s in the member: %w", l.key, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	l.mu.Lock()
	l.held, l.until = next, sent.Add(l.duration/2)
	l.stop = func() { cancel(); <-done }
	l.mu.Unlock()
	go func() {
		defer close(done)
		l.renewUntilDone(ctx)
	}()
	return nil
}

func (l *lease) stampRenewal(o *coordinationv1.Lease, now time.Time) {
	o.Spec.HolderIdentity = ptr.To(l.holder)
	o.Spec.LeaseDurationSeconds = ptr.To(int32((l.duration + time.Second - 1) / time.Second))
	o.Spec.RenewTime = ptr.To(metav1.NewMicroTime(now))
}

// renewUntilDone renews the Lease until ctx ends or the Lease is lost.
func (l *lease) renewUntilDone(ctx context.Context) {
	every := time.NewTicker(l.duration / 8)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		sent := time.Now()
		next, err := l.update(ctx, func(o *coordinationv1.Lease) { l.stampRenewal(o, sent) })
		l.mu.Lock()
		switch {
		case err == nil:
			l.held, l.until = next, sent.Add(l.duration/2)
		case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
			l.lost = fmt.Errorf("another process acquired Lease %s", l.key)
		}
		lost := l.lost
		l.mu.Unlock()
		if lost != nil {
			return
		}
		if err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Info("Failed to renew the Lease in the member; retrying", "lease", l.key.String(), "error", err.Error())
		}
	}
}

// releaseLease frees the Lease for others. One that may be lost is left to expire.
func (l *lease) releaseLease(ctx context.Context) {
	l.mu.Lock()
	stop := l.stop
	l.mu.Unlock()
	if stop == nil {
		return
	}
	stop()
	if l.Err() != nil {
		return
	}
	if _, err := l.update(ctx, func(o *coordinationv1.Lease) { o.Spec.HolderIdentity = ptr.To("") }); err != nil {
		log.FromContext(ctx).Info("Failed to release the Lease in the member; it expires", "lease", l.key.String(), "error", err.Error())
	}
	l.mu.Lock()
	l.held = nil
	l.mu.Unlock()
}

// update changes the held Lease. The answer to the last renewal may have been lost, or not awaited
// by releaseLease: the Lease then conflicts with what is known of it, and is still held.
func (l *lease) update(ctx context.Context, change func(*coordinationv1.Lease)) (*coordinationv1.Lease, error) {
	next := l.held.DeepCopy()
	change(next)
	err := l.client.Update(ctx, next)
	if !apierrors.IsConflict(err) {
		return next, err
	}
	now := &coordinationv1.Lease{}
	if err := l.client.Get(ctx, l.key, now); err != nil {
		return nil, err
	}
	if now.UID != l.held.UID || ptr.Deref(now.Spec.HolderIdentity, "") != l.holder || !ptr.Equal(now.Spec.LeaseTransitions, l.held.Spec.LeaseTransitions) {
		return nil, err
	}
	change(now)
	return now, l.client.Update(ctx, now)
}

// leaseObserver knows since when the Leases of others have not changed, by the own clock.
type leaseObserver struct {
	mu           sync.Mutex
	observations map[string]observation
}

type observation struct {
	uid, version string
	since        time.Time
}

// forget drops a member's Lease.
func (w *leaseObserver) forget(member string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.observations, member)
}

// observe records a member's Lease, nil for none. It returns nil if nobody holds it.
func (w *leaseObserver) observe(member string, o *coordinationv1.Lease, now time.Time) *install.Lease {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o == nil || ptr.Deref(o.Spec.HolderIdentity, "") == "" {
		delete(w.observations, member)
		return nil
	}
	if w.observations == nil {
		w.observations = map[string]observation{}
	}
	observed, known := w.observations[member]
	if !known || observed.uid != string(o.UID) || observed.version != o.ResourceVersion {
		observed = observation{uid: string(o.UID), version: o.ResourceVersion, since: now}
		w.observations[member] = observed
	}
	lasts := time.Duration(ptr.Deref(o.Spec.LeaseDurationSeconds, 0)) * time.Second
	return &install.Lease{Holder: *o.Spec.HolderIdentity, Until: observed.since.Add(lasts)}
}
