package clock

import (
	"sync"
	"time"
)

// AgeTracker computes the ages of things whose start is stored as a wall-clock time.
// Since a thing was first observed its age grows by the process's own clock: setting
// the wall clock back makes nothing younger. Before that the wall clock counts, so
// setting it back while no process runs does. The zero value uses the wall clock
// only. It is safe for concurrent use.
type AgeTracker struct {
	mu        sync.Mutex
	elapsed   func() time.Duration
	wallClock func() time.Time
	firstSeen map[string]firstObservation
}

// firstObservation is the age of a thing when it was first observed, and when that
// was.
type firstObservation struct{ age, at time.Duration }

// NewAgeTracker returns an AgeTracker. elapsed must never decrease (Clock.Elapsed).
func NewAgeTracker(elapsed func() time.Duration) *AgeTracker {
	return &AgeTracker{elapsed: elapsed, wallClock: time.Now}
}

// TrackOnly tracks the named things and forgets all others. A name must not be used
// again.
func (a *AgeTracker) TrackOnly(started map[string]time.Time) {
	if a == nil || a.elapsed == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now, next := a.elapsed(), make(map[string]firstObservation, len(started))
	for name, since := range started {
		first, ok := a.firstSeen[name]
		if !ok {
			first = firstObservation{age: max(0, a.wallClock().Sub(since)), at: now}
		}
		next[name] = first
	}
	a.firstSeen = next
}

// AgeOf returns the age of a thing that started at a wall-clock time.
func (a *AgeTracker) AgeOf(name string, started time.Time) time.Duration {
	if a == nil || a.elapsed == nil {
		return time.Since(started)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	age := a.wallClock().Sub(started)
	if first, ok := a.firstSeen[name]; ok {
		age = max(age, first.age+a.elapsed()-first.at)
	}
	return age
}
