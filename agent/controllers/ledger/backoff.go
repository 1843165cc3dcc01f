package ledger

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pelotech/ot-fleet/api/trigger"
)

const (
	// maxFailuresPerReconcile bounds how many requests of one reconcile may fail: answers that come
	// late would add up, and the only worker also frees slots.
	maxFailuresPerReconcile = 4
	minNamespaceDelay       = conflictRetryDelay
	maxNamespaceDelay       = 30 * time.Second
	// delayPerLatency is how many times as long as a request took a namespace waits after it has
	// failed: a webhook that never answers takes a small part of the worker's time.
	delayPerLatency = 20
	// maxUnansweredDelay bounds that where the API server did not answer: it may be its own stall.
	maxUnansweredDelay = time.Minute
	// forgetAfter is how long after its wait a failure counts that no other request followed.
	forgetAfter = time.Hour
)

// namespaceBackoff delays requests in namespaces where the last one failed. A webhook or quota of one
// namespace holds up no other.
//
// Invariant: namespaces that have failed before use up half of a reconcile's failures at most, so one
// that is skipped for the failures of others has its turn.
type namespaceBackoff struct {
	waiting map[string]namespaceWait
	// failed counts the failures of this reconcile, err joins them.
	failed int
	err    error
	// requeueAfter is when a namespace that was skipped may be asked; 0 for none.
	requeueAfter time.Duration
}

type namespaceWait struct {
	delay   time.Duration
	retryAt time.Time
}

// startReconcile forgets what the last reconcile counted, and namespaces that nothing was asked of
// for long.
func (b *namespaceBackoff) startReconcile(now time.Time) {
	b.failed, b.err, b.requeueAfter = 0, nil, 0
	for namespace, w := range b.waiting {
		if now.Sub(w.retryAt) > forgetAfter {
			delete(b.waiting, namespace)
		}
	}
}

// skips reports whether nothing is asked of a namespace now.
func (b *namespaceBackoff) skips(namespace string, now time.Time) bool {
	last, isRetry := b.waiting[namespace]
	left := last.retryAt.Sub(now)
	switch {
	case left > 0:
		b.requeueAfter = trigger.Earliest(b.requeueAfter, left)
	case b.failed >= maxFailuresPerReconcile, isRetry && b.failed >= maxFailuresPerReconcile/2:
		b.requeueAfter = trigger.Earliest(b.requeueAfter, minNamespaceDelay)
	default:
		return false
	}
	return true
}

// record notes the result of a request that began at a time.
func (b *namespaceBackoff) record(namespace string, err error, began, now time.Time) {
	if err == nil {
		delete(b.waiting, namespace)
		return
	}
	b.failed++
	b.err = errors.Join(b.err, err)
	delay := min(max(2*b.waiting[namespace].delay, minNamespaceDelay), maxNamespaceDelay)
	wait := max(delay, delayPerLatency*now.Sub(began))
	if !isAnswer(err) {
		wait = min(wait, maxUnansweredDelay)
	}
	if b.waiting == nil {
		b.waiting = map[string]namespaceWait{}
	}
	b.waiting[namespace] = namespaceWait{delay, now.Add(wait)}
	b.requeueAfter = trigger.Earliest(b.requeueAfter, wait)
}

// isAnswer reports whether an error is what the API server, or one of its webhooks, made of a request.
func isAnswer(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err) && !apierrors.IsServiceUnavailable(err) && !apierrors.IsTooManyRequests(err)
}
