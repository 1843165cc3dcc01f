package ledger

import (
	"errors"
	"slices"
	"time"

	"github.com/pelotech/ot-fleet/api/trigger"
)

const (
	// maxFailuresPerReconcile and maxRequestTime bound what the requests of one reconcile may fail and
	// take: the only worker also frees slots.
	maxFailuresPerReconcile = 4
	maxRequestTime          = 10 * time.Second
	minNamespaceDelay       = conflictRetryDelay
	maxNamespaceDelay       = 30 * time.Second
	// slowRequest is longer than an API server takes that nothing holds up.
	slowRequest = 3 * time.Second
	// delayPerLatency is how many times as long as a request took a namespace waits after it has
	// failed, or was slow: a webhook that holds requests up takes a small part of the worker's time.
	delayPerLatency = 20
	// firstUnansweredDelay bounds that where the API server has not answered: it may be its own
	// stall. It doubles with each such failure, up to maxUnansweredDelay.
	firstUnansweredDelay = 30 * time.Second
	maxUnansweredDelay   = 10 * time.Minute
	// forgetAfter is how long after its wait a failure counts that no other request followed.
	forgetAfter = time.Hour
)

// namespaceBackoff delays requests in namespaces where the last one failed or was slow. A webhook or
// quota of one namespace holds up no other.
//
// Invariant: namespaces without a failure or a slow answer come first, in the order of their slots (S3).
// Then come those whose wait ended first, so one that is skipped for others has its turn in a later
// reconcile.
type namespaceBackoff struct {
	waiting map[string]namespaceWait
	// failed counts the failures of this reconcile, err joins them; spent is the time of its requests.
	failed int
	spent  time.Duration
	err    error
	// requeueAfter is when a namespace that was skipped may be asked; 0 for none.
	requeueAfter time.Duration
}

type namespaceWait struct {
	delay, unanswered time.Duration
	retryAt           time.Time
}

// startReconcile forgets what the last reconcile counted, and namespaces that nothing was asked of
// for long.
func (b *namespaceBackoff) startReconcile(now time.Time) {
	b.failed, b.spent, b.err, b.requeueAfter = 0, 0, nil, 0
	for namespace, w := range b.waiting {
		if now.Sub(w.retryAt) > forgetAfter {
			delete(b.waiting, namespace)
		}
	}
}

// inTurn returns a list in the order in which its namespaces have their turn; those of one namespace
// keep theirs.
func inTurn[T any](b *namespaceBackoff, list []T, namespaceOf func(T) string) []T {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(x, y T) int {
		return b.waiting[namespaceOf(x)].retryAt.Compare(b.waiting[namespaceOf(y)].retryAt)
	})
	return list
}

// skips reports whether nothing is asked of a namespace now.
func (b *namespaceBackoff) skips(namespace string, now time.Time) bool {
	left := b.waiting[namespace].retryAt.Sub(now)
	switch {
	case left > 0:
		b.requeueAfter = trigger.Earliest(b.requeueAfter, left)
	case b.failed >= maxFailuresPerReconcile, b.spent >= maxRequestTime:
		b.requeueAfter = trigger.Earliest(b.requeueAfter, minNamespaceDelay)
	default:
		return false
	}
	return true
}

// record notes the result of a request that began at a time.
func (b *namespaceBackoff) record(namespace string, err error, began, now time.Time) {
	took := now.Sub(began)
	b.spent += took
	if err == nil && took < slowRequest {
		delete(b.waiting, namespace)
		return
	}
	w := b.waiting[namespace]
	wait := delayPerLatency * took
	if err != nil {
		b.failed++
		b.err = errors.Join(b.err, err)
		w.delay = min(max(2*w.delay, minNamespaceDelay), maxNamespaceDelay)
		if trigger.IsAnswer(err) {
			w.unanswered = 0
		} else {
			w.unanswered = min(max(2*w.unanswered, firstUnansweredDelay), maxUnansweredDelay)
			wait = min(wait, w.unanswered)
		}
		wait = max(wait, w.delay)
	}
	w.retryAt = now.Add(wait)
	if b.waiting == nil {
		b.waiting = map[string]namespaceWait{}
	}
	b.waiting[namespace] = w
	b.requeueAfter = trigger.Earliest(b.requeueAfter, wait)
}
