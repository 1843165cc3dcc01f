package trigger

import (
	"context"
	"slices"
	"sync"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// slowReconcile is how long a reconcile may take in a namespace that does not count as slow. It
	// is longer than what a Reconciler itself waits for a webhook or a read, 3 s each.
	slowReconcile = 8 * time.Second
	// slowPeriod is how long a namespace counts as slow after that.
	slowPeriod = 30 * time.Minute
	// busyRetryDelay is the requeue delay of a request that gets no worker, and maxWorkerWait how
	// long it waits for one while its namespace does not count as slow.
	busyRetryDelay = time.Second
	maxWorkerWait  = 500 * time.Millisecond
)

// slowNamespaces is a Reconciler that keeps slow namespaces from using all workers.
type slowNamespaces struct {
	reconcile.Reconciler
	workers int
	now     func() time.Time

	mu          sync.Mutex
	byName      map[string]*namespaceUse
	slowRunning int
}

// namespaceUse is how a namespace uses workers.
type namespaceUse struct {
	// running are when its reconciles began that have not ended.
	running   []time.Time
	slowUntil time.Time
	// servedAt and refusedAt are when it last got a worker, and when none.
	servedAt, refusedAt time.Time
	// released is closed when a reconcile ends.
	released chan struct{}
}

func (u *namespaceUse) isSlow(now time.Time) bool {
	return u.slowUntil.After(now) || len(u.running) > 0 && now.Sub(u.running[0]) >= slowReconcile
}

// waits reports whether a request of it was refused and comes again.
func (u *namespaceUse) waits(now time.Time) bool { return now.Sub(u.refusedAt) <= 2*busyRetryDelay }

// IsolateSlowNamespaces wraps the Reconciler of a controller with a number of workers. A webhook or
// a quota of one namespace may hold up each request there for seconds.
//
// Invariant: no namespace has all workers. One in which a reconcile took long has one from then on, and
// all of these together half of them, in turn.
func IsolateSlowNamespaces(r reconcile.Reconciler, workers int) reconcile.Reconciler {
	return &slowNamespaces{Reconciler: r, workers: workers, now: time.Now, byName: map[string]*namespaceUse{}}
}

func (s *slowNamespaces) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	worker := s.awaitWorker(ctx, request.Namespace)
	if worker == nil {
		return ctrl.Result{RequeueAfter: busyRetryDelay}, nil
	}
	defer worker.releaseWorker()
	return s.Reconciler.Reconcile(ctx, request)
}

// takenWorker is one that a namespace has until it is released.
type takenWorker struct {
	of        *slowNamespaces
	namespace string
	began     time.Time
	asSlow    bool
}

// awaitWorker returns nil where the request has to come again. One of a namespace that only uses many
// workers gets the next one that it releases.
func (s *slowNamespaces) awaitWorker(ctx context.Context, namespace string) *takenWorker {
	timeout := time.NewTimer(maxWorkerWait)
	defer timeout.Stop()
	for {
		worker, released := s.takeWorker(namespace)
		if worker != nil || released == nil {
			return worker
		}
		select {
		case <-released:
		case <-timeout.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// takeWorker returns nil where there is none, and, for a namespace that is not known to be slow, what
// is closed when it releases one.
func (s *slowNamespaces) takeWorker(namespace string) (worker *takenWorker, released <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	use, now := s.byName[namespace], s.now()
	if use == nil {
		use = &namespaceUse{released: make(chan struct{})}
		s.byName[namespace] = use
	}
	asSlow := use.isSlow(now)
	switch {
	case asSlow && !s.hasTurn(use, now):
		use.refusedAt = now
		return nil, nil
	case !asSlow && len(use.running) >= max(1, s.workers-1):
		use.refusedAt = now
		return nil, use.released
	}
	use.running, use.servedAt = append(use.running, now), now
	if asSlow {
		s.slowRunning++
	}
	return &takenWorker{s, namespace, now, asSlow}, nil
}

// hasTurn reports whether a slow namespace gets a worker: it has none, there is one for slow
// namespaces, and no other one that waits was served before it.
func (s *slowNamespaces) hasTurn(use *namespaceUse, now time.Time) bool {
	if len(use.running) > 0 || s.slowRunning >= max(1, s.workers/2) {
		return false
	}
	for _, other := range s.byName {
		if other != use && other.isSlow(now) && len(other.running) == 0 && other.waits(now) && other.servedAt.Before(use.servedAt) {
			return false
		}
	}
	return true
}

func (w *takenWorker) releaseWorker() {
	s := w.of
	s.mu.Lock()
	defer s.mu.Unlock()
	now, use := s.now(), s.byName[w.namespace]
	i := slices.Index(use.running, w.began)
	use.running = slices.Delete(use.running, i, i+1)
	if w.asSlow {
		s.slowRunning--
	}
	if now.Sub(w.began) >= slowReconcile {
		use.slowUntil = now.Add(slowPeriod)
	}
	close(use.released)
	use.released = make(chan struct{})
	for name, use := range s.byName {
		if len(use.running) == 0 && !use.isSlow(now) && !use.waits(now) {
			delete(s.byName, name)
		}
	}
}
