package trigger

import (
	"context"
	"sync"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// slowReconcile is how long a reconcile may take in a namespace that does not count as slow.
	// Requests that nothing holds up take milliseconds.
	slowReconcile = 3 * time.Second
	// slowPeriod is how long a namespace counts as slow after that.
	slowPeriod = 10 * time.Minute
	// busyRetryDelay is the requeue delay while other slow namespaces use their workers.
	busyRetryDelay = time.Second
)

// slowNamespaces is a Reconciler that keeps slow namespaces from using all workers.
type slowNamespaces struct {
	reconcile.Reconciler
	workers int
	now     func() time.Time

	mu      sync.Mutex
	slow    map[string]time.Time // until when
	running int                  // in slow namespaces
}

// IsolateSlowNamespaces wraps the Reconciler of a controller with a number of workers. A webhook or
// a quota of one namespace may hold up each request there for seconds.
//
// Invariant: namespaces in which a reconcile took long share half of the workers.
func IsolateSlowNamespaces(r reconcile.Reconciler, workers int) reconcile.Reconciler {
	return &slowNamespaces{Reconciler: r, workers: max(1, workers/2), now: time.Now, slow: map[string]time.Time{}}
}

func (s *slowNamespaces) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	began := s.now()
	isSlow, hasWorker := s.takeWorker(request.Namespace, began)
	if isSlow && !hasWorker {
		return ctrl.Result{RequeueAfter: busyRetryDelay}, nil
	}
	defer func() { s.releaseWorker(request.Namespace, isSlow, began) }()
	return s.Reconciler.Reconcile(ctx, request)
}

func (s *slowNamespaces) takeWorker(namespace string, now time.Time) (isSlow, hasWorker bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.slow[namespace].After(now) {
		delete(s.slow, namespace)
		return false, false
	}
	if s.running >= s.workers {
		return true, false
	}
	s.running++
	return true, true
}

func (s *slowNamespaces) releaseWorker(namespace string, wasSlow bool, began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if wasSlow {
		s.running--
	}
	if now := s.now(); now.Sub(began) >= slowReconcile {
		s.slow[namespace] = now.Add(slowPeriod)
	}
}
