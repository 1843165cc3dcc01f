package trigger

import (
	"context"
	"sync"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
)

// Throttle spaces the reconciles of each object, so that many events lead to one
// reconcile. The zero Throttle spaces nothing. It is safe for concurrent use.
type Throttle struct {
	// MinInterval is the shortest time between the starts of two reconciles.
	MinInterval time.Duration
	// IdleFactor stretches the interval to so many times the last duration, up to
	// MaxInterval: one object must not keep a worker busy.
	IdleFactor  int
	MaxInterval time.Duration

	conflicts ConflictTracker
	mu        sync.Mutex
	runs      map[string]lastRun
}

type lastRun struct {
	startedAt time.Time
	took      time.Duration
}

// Run calls reconcile, unless the last run was too recent: then it returns the time
// that is left. It returns after how long to reconcile again; 0 for none.
func (t *Throttle) Run(ctx context.Context, name string, reconcile func(ctx context.Context, name string) (time.Duration, error)) (time.Duration, error) {
	start := time.Now()
	if delay := t.reserve(name, start); delay > 0 {
		return delay, nil
	}
	defer func() { t.recordDuration(name, time.Since(start)) }()
	return reconcile(ctx, name)
}

// Reconcile calls reconcile as Run does, and ends as ConflictTracker.Result says.
func (t *Throttle) Reconcile(ctx context.Context, name string, reconcile func(ctx context.Context, name string) (time.Duration, error)) (ctrl.Result, error) {
	ran := false
	after, err := t.Run(ctx, name, func(ctx context.Context, name string) (time.Duration, error) {
		ran = true
		return reconcile(ctx, name)
	})
	if !ran {
		return ctrl.Result{RequeueAfter: after}, nil
	}
	return t.conflicts.Result(ctx, Requests(name)[0], ctrl.Result{RequeueAfter: after}, err)
}

// reserve returns how long to wait; at 0 the run is counted as started.
func (t *Throttle) reserve(name string, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.runs[name]
	interval := max(t.MinInterval, min(time.Duration(t.IdleFactor)*last.took, t.MaxInterval))
	if since := now.Sub(last.startedAt); since >= 0 && since < interval {
		return interval - since
	}
	if t.runs == nil {
		t.runs = map[string]lastRun{}
	}
	t.runs[name] = lastRun{startedAt: now, took: last.took}
	return 0
}

func (t *Throttle) recordDuration(name string, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last, ok := t.runs[name]; ok {
		t.runs[name] = lastRun{startedAt: last.startedAt, took: took}
	}
}

// Forget drops an object that is gone.
func (t *Throttle) Forget(name string) {
	t.conflicts.Forget(Requests(name)[0])
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.runs, name)
}
