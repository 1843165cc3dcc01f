package trigger

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// lateAnswer is longer than a request, or a reconcile, takes that nothing holds up.
	lateAnswer = 3 * time.Second
	// A reconcile that failed late is repeated after minLateDelay, which doubles with each further
	// one, up to maxLateDelay.
	minLateDelay = MaxRetryDelay
	maxLateDelay = 10 * time.Minute
)

// LatencyLimiter is the RateLimiter of a controller. Objects whose reconciles fail late, as by a webhook
// of their namespace that does not answer, are retried less often than others: each holds a worker
// meanwhile.
type LatencyLimiter struct {
	workqueue.TypedRateLimiter[reconcile.Request]
	mu sync.Mutex
	// delays of requests whose last reconcile failed late.
	delays map[reconcile.Request]time.Duration
}

// Refusal ends a reconcile whose request was refused, which the status of the object reports. It is
// no error: it is retried after RetryAfter, or later where the refusal itself came late.
type Refusal struct {
	Err        error
	RetryAfter time.Duration
}

func (r *Refusal) Error() string { return r.Err.Error() }

func (r *Refusal) Unwrap() error { return r.Err }

// NewLatencyLimiter returns a LatencyLimiter for the Reconciler that it limits.
func NewLatencyLimiter() *LatencyLimiter {
	return &LatencyLimiter{TypedRateLimiter: NewRateLimiter(), delays: map[reconcile.Request]time.Duration{}}
}

// When returns the delay of the next retry.
func (l *LatencyLimiter) When(request reconcile.Request) time.Duration {
	return max(l.TypedRateLimiter.When(request), l.lateDelay(request))
}

func (l *LatencyLimiter) lateDelay(request reconcile.Request) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.delays[request]
}

// Limit wraps the controller's Reconciler, whose reconciles are timed. A Refusal becomes a Result.
func (l *LatencyLimiter) Limit(r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
		began := time.Now()
		result, err := r.Reconcile(ctx, request)
		l.record(request, err, time.Since(began))
		var refusal *Refusal
		if errors.As(err, &refusal) {
			return ctrl.Result{RequeueAfter: max(refusal.RetryAfter, l.lateDelay(request))}, nil
		}
		return result, err
	})
}

func (l *LatencyLimiter) record(request reconcile.Request, err error, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil || took < lateAnswer {
		delete(l.delays, request)
		return
	}
	l.delays[request] = min(max(2*l.delays[request], minLateDelay), maxLateDelay)
}
