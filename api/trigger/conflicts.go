package trigger

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// maxConflicts is how many conflicts in a row another read of the object may solve.
const maxConflicts = 5

// ConflictTracker tells conflicts that another read solves from those that last, for example where a webhook
// denies a request with the code of a conflict: retried at once, they would be retried without end.
// The zero value is ready to use.
type ConflictTracker struct {
	mu sync.Mutex
	// consecutive conflicts of a request.
	consecutive map[reconcile.Request]int
	// gone are the requests whose last reconcile met an object that does not exist.
	gone map[reconcile.Request]bool
}

// IsObjectConflict reports whether the API server answers that an object differs from what was read. A conflict
// over a ResourceQuota is about another object.
func IsObjectConflict(err error) bool {
	if !apierrors.IsConflict(err) {
		return false
	}
	var status apierrors.APIStatus
	return !errors.As(err, &status) || status.Status().Details == nil || status.Status().Details.Kind != "resourcequotas"
}

// IsOlderVersion reports whether a resourceVersion is known to be older than another one.
func IsOlderVersion(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// Record counts consecutive conflicts and returns the delay of the next try, which doubles with each,
// since a watch may lag behind; 0 where there were too many, so that err is an error as any other.
// Every other answer of the API server ends the count. An object that exists although no cache shows
// it is a conflict, too. isStale: the object has changed since it was read, which says nothing about
// requests.
func (t *ConflictTracker) Record(request reconcile.Request, err error, isStale bool) (delay time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case IsObjectConflict(err), apierrors.IsAlreadyExists(err):
		return t.add(request)
	case !isStale:
		delete(t.consecutive, request)
	}
	return ConflictRetryDelay
}

// add requires t.mu.
func (t *ConflictTracker) add(request reconcile.Request) (delay time.Duration) {
	if t.consecutive == nil {
		t.consecutive = map[reconcile.Request]int{}
	}
	n := t.consecutive[request]
	t.consecutive[request] = min(n+1, maxConflicts)
	if n >= maxConflicts {
		return 0
	}
	return ConflictRetryDelay << n
}

// Result ends a reconcile whose outcome is result or err. A write that another writer preempted, by
// a change or a creation, is retried after a delay that doubles, and is no error. One conflict too
// many in a row is: the controller's backoff spares an API server that is in trouble. An object that
// another writer has deleted is no error once: the cache shows that soon. If it is missing again, so
// may be its namespace or kind, which no other read solves, and which is no conflict that lasts.
// Invariant: every end of a reconcile that may have written passes here, since a success ends the row.
func (t *ConflictTracker) Result(ctx context.Context, request reconcile.Request, result reconcile.Result, err error) (reconcile.Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	wasGone, isGone := t.gone[request], apierrors.IsNotFound(err)
	t.setGone(request, isGone)
	if !IsConflict(err) {
		delete(t.consecutive, request)
	}
	var delay time.Duration
	switch {
	case err == nil:
		return result, nil
	case isGone && !wasGone:
		delay = ConflictRetryDelay
	case IsConflict(err):
		delay = t.add(request)
	}
	if delay == 0 {
		return reconcile.Result{}, err
	}
	log.FromContext(ctx).V(1).Info("Conflict, or an object is gone; retrying", "retryAfter", delay, "error", err.Error())
	return reconcile.Result{RequeueAfter: delay}, nil
}

// setGone requires t.mu.
func (t *ConflictTracker) setGone(request reconcile.Request, gone bool) {
	switch {
	case !gone:
		delete(t.gone, request)
	case t.gone == nil:
		t.gone = map[reconcile.Request]bool{request: true}
	default:
		t.gone[request] = true
	}
}

// Forget drops the conflicts of an object that is gone.
func (t *ConflictTracker) Forget(request reconcile.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.consecutive, request)
	delete(t.gone, request)
}

// EndConflicts wraps a Reconciler, whose reconciles end as ConflictTracker.Result says.
func EndConflicts(r reconcile.Reconciler) reconcile.Reconciler {
	var t ConflictTracker
	return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		result, err := r.Reconcile(ctx, request)
		return t.Result(ctx, request, result, err)
	})
}

// IsPreempted reports whether another read of objects may solve err: a conflict does not last, or an object is
// gone for the first time.
func (t *ConflictTracker) IsPreempted(request reconcile.Request, err error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return IsConflict(err) && t.consecutive[request] < maxConflicts || apierrors.IsNotFound(err) && !t.gone[request]
}

// IsExhausted reports whether one more conflict of a request is one too many.
func (t *ConflictTracker) IsExhausted(request reconcile.Request) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.consecutive[request] >= maxConflicts
}
