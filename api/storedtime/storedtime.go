// Package storedtime has the one rule for times that a process reads from what is stored. A time
// that is later than now was written by a clock that was ahead: nothing waits until the clock gets
// there, which may take years.
package storedtime

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Truncate drops what the API server does not store of a time: fractions and the zone.
func Truncate(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second).UTC()) }

// EarlierTime returns the earlier of two times; nil is none.
func EarlierTime(a, b *metav1.Time) *metav1.Time {
	if a == nil || b != nil && b.Before(a) {
		return b
	}
	return a
}

// LaterTime returns the later of two times; nil is none.
func LaterTime(a, b *metav1.Time) *metav1.Time {
	if a == nil || b != nil && a.Before(b) {
		return b
	}
	return a
}

// LaterOf returns the later of two times.
func LaterOf(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// IsOlder orders objects by creation, and by name where that was in the same second. Nothing is
// older than itself.
func IsOlder(a, b metav1.Object) bool {
	created, other := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	if !created.Equal(&other) {
		return created.Before(&other)
	}
	return a.GetName() < b.GetName()
}

// Remaining returns what is left of a wait since a stored time, 0 for nothing. Nothing is left
// where the time is ahead of now. Invariant: it is never more than wait.
func Remaining(now, since time.Time, wait time.Duration) time.Duration {
	if since.After(now) {
		return 0
	}
	return max(0, wait-now.Sub(since))
}

// Since returns a stored time, or now where there is none or where it is ahead of now: what counts
// from then is stored anew, and counts from now.
func Since(now metav1.Time, stored *metav1.Time) *metav1.Time {
	if stored == nil || stored.After(now.Time) {
		return &now
	}
	return stored
}
