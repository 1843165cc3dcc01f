package trigger

import (
	"cmp"
	"errors"
	"maps"
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
	// forgetAfter is how long a failure counts that no other request of its namespace, or of its object,
	// followed.
	forgetAfter = time.Hour
)

// NamespaceBackoff delays requests in namespaces where the last one failed, for a Reconciler that has
// one worker for all of them. A webhook or quota of one namespace holds up no other. An object of it whose
// requests fail holds up the later ones for KeepOrderFor, and for the wait after a request that fails of each
// such object before them. One that begins to fail after a success there does so again. The zero value is
// ready for use.
//
// Invariant: namespaces without a failure or a late answer come first, in the order of the list.
// Then come those whose wait ended first, so one that is skipped for others has its turn in a later
// reconcile.
type NamespaceBackoff struct {
	// KeepOrderFor is how long an object whose requests fail keeps its turn before the later ones of its
	// namespace, from the first failure since a request there succeeded: what fails one fails all where the
	// API server is at fault. It yields at the first request after that. 0 for not at all.
	KeepOrderFor time.Duration

	waiting map[string]namespaceWait
	// now is when this reconcile began.
	now time.Time
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
	// failingSince is the first failure since a request succeeded; zero for none.
	failingSince time.Time
	// failed has the names of the objects whose last request failed.
	failed map[string]objectFailure
}

// objectFailure is when an object lets the others of its namespace pass, and when it last failed.
type objectFailure struct{ yieldsAt, last time.Time }

// place is 1 for an object that lets the others of its namespace pass.
func (w namespaceWait) place(name string, now time.Time) int {
	if failure, failed := w.failed[name]; failed && !now.Before(failure.yieldsAt) {
		return 1
	}
	return 0
}

// StartReconcile forgets what the last reconcile counted, and namespaces and objects that nothing was
// asked of for long.
func (b *NamespaceBackoff) StartReconcile(now time.Time) {
	b.now, b.failed, b.spent, b.Err, b.RequeueAfter = now, 0, 0, nil, 0
	for namespace, w := range b.waiting {
		maps.DeleteFunc(w.failed, func(_ string, f objectFailure) bool { return now.Sub(f.last) > forgetAfter })
		if len(w.failed) == 0 && now.Sub(w.retryAt) > forgetAfter {
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
			cmp.Compare(b.waiting[namespace].place(name, b.now), b.waiting[other].place(otherName, b.now)),
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
	if err == nil {
		delete(w.failed, name)
		w = namespaceWait{failed: w.failed}
		if isLate {
			w.retryAt = now // the others have their turn first
		} else if len(w.failed) == 0 {
			delete(b.waiting, namespace)
			return
		}
	} else {
		b.failed++
		b.Err = errors.Join(b.Err, err)
		w = w.withFailure(name, isLate, now, b.KeepOrderFor)
		b.RequeueAfter = Earliest(b.RequeueAfter, w.delay)
	}
	if b.waiting == nil {
		b.waiting = map[string]namespaceWait{}
	}
	b.waiting[namespace] = w
}

// withFailure returns the wait after a request for an object has failed.
func (w namespaceWait) withFailure(name string, isLate bool, now time.Time, keepOrderFor time.Duration) namespaceWait {
	if w.failingSince.IsZero() || now.Sub(w.retryAt) > keepOrderFor {
		w.failingSince = now // a failure from long ago says nothing of this one
	}
	if isLate {
		w.delay = min(max(2*w.delay, maxNamespaceDelay), maxLateDelay)
	} else {
		w.delay = min(max(2*w.delay, minNamespaceDelay), maxNamespaceDelay)
	}
	w.retryAt = now.Add(w.delay)
	failure, hasFailed := w.failed[name]
	if !hasFailed {
		failure.yieldsAt = w.failingSince.Add(keepOrderFor)
	}
	failure.last = now
	if w.failed == nil {
		w.failed = map[string]objectFailure{}
	}
	w.failed[name] = failure
	return w
}
