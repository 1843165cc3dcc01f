package trigger

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

const (
	// maxFailuresPerReconcile and maxRequestTime bound what the requests of one reconcile may fail and
	// take: the only worker has other work, too.
	maxFailuresPerReconcile = 4
	maxRequestTime          = 10 * time.Second
	// A namespace waits after a failure, from minNamespaceDelay to maxNamespaceDelay, and after a late
	// one from maxNamespaceDelay to maxLateDelay: the worker waits for each.
	minNamespaceDelay = 20 * time.Millisecond
	maxNamespaceDelay = MaxRetryDelay
	// forgetAfter is how long after its wait a failure counts that no other request followed.
	forgetAfter = time.Hour
)

// NamespaceBackoff delays requests in namespaces where the last one failed, for a Reconciler that has
// one worker for all of them. A webhook or quota of one namespace holds up no other, and no other object
// of it. The zero value is ready for use.
//
// Invariant: namespaces without a failure or a late answer come first, in the order of the list.
// Then come those whose wait ended first, so one that is skipped for others has its turn in a later
// reconcile.
type NamespaceBackoff struct {
	waiting map[string]namespaceWait
	// failed counts the failures of this reconcile; spent is the time of its requests.
	failed int
	spent  time.Duration
	// Err joins the failures of this reconcile.
	Err error
	// RequeueAfter is when a namespace that was skipped may be asked; 0 for none.
	RequeueAfter time.Duration
}

type namespaceWait struct {
	delay   time.Duration
	retryAt time.Time
	// failed is 1 for the names of objects whose requests failed since one succeeded.
	failed map[string]int
}

// StartReconcile forgets what the last reconcile counted, and namespaces that nothing was asked of
// for long.
func (b *NamespaceBackoff) StartReconcile(now time.Time) {
	b.failed, b.spent, b.Err, b.RequeueAfter = 0, 0, nil, 0
	for namespace, w := range b.waiting {
		if now.Sub(w.retryAt) > forgetAfter {
			delete(b.waiting, namespace)
		}
	}
}

// InTurn returns a list in the order in which its objects have their turn. Where nothing fails, that
// is the order of the list.
func InTurn[T any](b *NamespaceBackoff, list []T, nameOf func(T) (namespace, name string)) []T {
	if len(b.waiting) == 0 {
		return list
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(x, y T) int {
		namespace, name := nameOf(x)
		other, otherName := nameOf(y)
		return cmp.Or(
			b.waiting[namespace].retryAt.Compare(b.waiting[other].retryAt),
			cmp.Compare(b.waiting[namespace].failed[name], b.waiting[other].failed[otherName]),
		)
	})
	return list
}

// Skips reports whether nothing is asked of a namespace now.
func (b *NamespaceBackoff) Skips(namespace string, now time.Time) bool {
	left := b.waiting[namespace].retryAt.Sub(now)
	switch {
	case left > 0:
		b.RequeueAfter = Earliest(b.RequeueAfter, left)
	case b.failed >= maxFailuresPerReconcile, b.spent >= maxRequestTime:
		b.RequeueAfter = Earliest(b.RequeueAfter, minNamespaceDelay)
	default:
		return false
	}
	return true
}

// Record notes the result of a request that began at a time.
func (b *NamespaceBackoff) Record(namespace, name string, err error, began, now time.Time) {
	isLate := now.Sub(began) >= lateAnswer
	b.spent += now.Sub(began)
	w := b.waiting[namespace]
	switch {
	case err == nil && !isLate:
		delete(b.waiting, namespace)
		return
	case err == nil:
		w = namespaceWait{retryAt: now} // the others have their turn first
	default:
		b.failed++
		b.Err = errors.Join(b.Err, err)
		if isLate {
			w.delay = min(max(2*w.delay, maxNamespaceDelay), maxLateDelay)
		} else {
			w.delay = min(max(2*w.delay, minNamespaceDelay), maxNamespaceDelay)
		}
		w.retryAt = now.Add(w.delay)
		if w.failed == nil {
			w.failed = map[string]int{}
		}
		w.failed[name] = 1
		b.RequeueAfter = Earliest(b.RequeueAfter, w.delay)
	}
	if b.waiting == nil {
		b.waiting = map[string]namespaceWait{}
	}
	b.waiting[namespace] = w
}
