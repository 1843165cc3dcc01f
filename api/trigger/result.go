package trigger

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// ConflictRetryDelay is the requeue delay after a write conflict: the cache needs that
// long to show what another writer has stored.
const ConflictRetryDelay = 50 * time.Millisecond

// Result ends a reconcile. If isConflict recognizes err as a write that another writer
// preempted, the request is requeued after delay, and no error is counted. Every other
// error goes to the controller's backoff.
func Result(ctx context.Context, err error, delay time.Duration, isConflict func(error) bool) (ctrl.Result, error) {
	if err != nil && isConflict(err) {
		log.FromContext(ctx).V(1).Info("Write conflict; retrying", "retryAfter", delay, "error", err.Error())
		return ctrl.Result{RequeueAfter: delay}, nil
	}
	return ctrl.Result{}, err
}

// ErrChanged is a conflict that the reconcile finds itself, before the API server does.
var ErrChanged = errors.New("somebody else has changed it")

// IsConflict reports whether another writer has changed or created the object first.
func IsConflict(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || errors.Is(err, ErrChanged)
}

// Earliest returns the shortest of requeue delays, where 0 means none.
func Earliest(delays ...time.Duration) (earliest time.Duration) {
	for _, delay := range delays {
		if earliest == 0 || delay > 0 && delay < earliest {
			earliest = delay
		}
	}
	return earliest
}
