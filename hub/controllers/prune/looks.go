package prune

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// conflictRetryDelay is when to go on that somebody else was faster than.
	conflictRetryDelay = 50 * time.Millisecond
	// minInterval is how long what happens is collected before an object is looked at
	// again: a thousand members may answer at once.
	minInterval = 100 * time.Millisecond
	// idleFactor is the part of the time, as one in share, that looking at one object
	// takes at most, if no look is waited for longer than maxInterval.
	idleFactor  = 5
	maxInterval = 5 * time.Second
	// maxBackoff is the longest wait before a request that failed is tried again.
	maxBackoff = 30 * time.Second
	// startupRetryDelay is how often a hub that has just begun looks whether it knows what it
	// decides on.
	startupRetryDelay = 200 * time.Millisecond
)

// throttle keeps those at one object apart.
type throttle struct {
	mu   sync.Mutex
	runs map[string]lastRun
}

type lastRun struct {
	startedAt time.Time
	took      time.Duration
}

// runThrottled looks at an object, if it is not too soon after the last look.
func (l *throttle) runThrottled(ctx context.Context, name string, look func(context.Context, string) (time.Duration, error)) (ctrl.Result, error) {
	begin := time.Now()
	if wait := l.delay(name, begin); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	defer func() { l.recordDuration(name, time.Since(begin)) }()
	after, err := look(ctx, name)
	if err != nil {
		return resultFor(ctx, err)
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// delay tells how long to wait before an object is looked at again; 0: it is now.
func (l *throttle) delay(name string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.runs[name]
	gap := min(max(minInterval, idleFactor*last.took), maxInterval)
	if since := now.Sub(last.startedAt); since >= 0 && since < gap {
		return gap - since
	}
	if l.runs == nil {
		l.runs = map[string]lastRun{}
	}
	l.runs[name] = lastRun{startedAt: now, took: last.took}
	return 0
}

// recordDuration notes how long a look took.
func (l *throttle) recordDuration(name string, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last, is := l.runs[name]; is {
		l.runs[name] = lastRun{startedAt: last.startedAt, took: took}
	}
}

func (l *throttle) forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.runs, name)
}

// resultFor tells that somebody else was faster, or has deleted what was written, from
// what went wrong.
func resultFor(ctx context.Context, err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		log.FromContext(ctx).V(1).Info("Somebody else wrote at the same time", "error", err.Error())
		return ctrl.Result{RequeueAfter: conflictRetryDelay}, nil
	}
	return ctrl.Result{}, err
}

// shorterDelay is the shorter of two waits, of which 0 is none.
func shorterDelay(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
