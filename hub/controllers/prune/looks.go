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
	// soon is when to go on that somebody else was faster than.
	soon = 50 * time.Millisecond
	// settle is how long what happens is collected before an object is looked at
	// again: a thousand members may answer at once.
	settle = 100 * time.Millisecond
	// share is the part of the time, as one in share, that looking at one object
	// takes at most, if no look is waited for longer than mostSettle.
	share      = 5
	mostSettle = 5 * time.Second
	// mostBackoff is the longest wait before a request that failed is tried again.
	mostBackoff = 30 * time.Second
	// starting is how often a hub that has just begun looks whether it knows what it
	// decides on.
	starting = 200 * time.Millisecond
)

// looks keeps those at one object apart.
type looks struct {
	mu sync.Mutex
	of map[string]look
}

type look struct {
	at   time.Time
	took time.Duration
}

// take looks at an object, if it is not too soon after the last look.
func (l *looks) take(ctx context.Context, name string, look func(context.Context, string) (time.Duration, error)) (ctrl.Result, error) {
	begin := time.Now()
	if wait := l.tooSoon(name, begin); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	defer func() { l.ended(name, time.Since(begin)) }()
	after, err := look(ctx, name)
	if err != nil {
		return result(ctx, err)
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// tooSoon tells how long to wait before an object is looked at again; 0: it is now.
func (l *looks) tooSoon(name string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.of[name]
	gap := min(max(settle, share*last.took), mostSettle)
	if since := now.Sub(last.at); since >= 0 && since < gap {
		return gap - since
	}
	if l.of == nil {
		l.of = map[string]look{}
	}
	l.of[name] = look{at: now, took: last.took}
	return 0
}

// ended notes how long a look took.
func (l *looks) ended(name string, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last, is := l.of[name]; is {
		l.of[name] = look{at: last.at, took: took}
	}
}

func (l *looks) forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, name)
}

// result tells that somebody else was faster, or has deleted what was written, from
// what went wrong.
func result(ctx context.Context, err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		log.FromContext(ctx).V(1).Info("Somebody else wrote at the same time", "error", err.Error())
		return ctrl.Result{RequeueAfter: soon}, nil
	}
	return ctrl.Result{}, err
}

// sooner is the shorter of two waits, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
