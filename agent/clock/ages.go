package clock

import (
	"sync"
	"time"
)

// AgeTracker tell how old things are of which it is stored by the wall clock when they began.
// What a process has seen since, it knows by its own clock: a wall clock that is put
// back makes nothing younger. What was before is known by the wall clock alone, so that
// one that is put back while no process runs does. The zero value goes by the wall
// clock. It is safe for concurrent use.
type AgeTracker struct {
	mu        sync.Mutex
	elapsed   func() time.Duration
	wallClock func() time.Time
	firstSeen map[string]firstObservation
}

// firstObservation is how old a thing was when it was first seen.
type firstObservation struct{ age, at time.Duration }

// NewAgeTracker returns Ages by a clock that nobody sets.
func NewAgeTracker(elapsed func() time.Duration) *AgeTracker {
	return &AgeTracker{elapsed: elapsed, wallClock: time.Now}
}

// TrackOnly takes note of the things that there are, by their names, which are never used
// again, and forgets all others.
func (a *AgeTracker) TrackOnly(began map[string]time.Time) {
	if a == nil || a.elapsed == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now, next := a.elapsed(), make(map[string]firstObservation, len(began))
	for name, since := range began {
		s, known := a.firstSeen[name]
		if !known {
			s = firstObservation{age: max(0, a.wallClock().Sub(since)), at: now}
		}
		next[name] = s
	}
	a.firstSeen = next
}

// AgeOf is how old a thing is that began at a time by the wall clock.
func (a *AgeTracker) AgeOf(name string, began time.Time) time.Duration {
	if a == nil || a.elapsed == nil {
		return time.Since(began)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	age := a.wallClock().Sub(began)
	if s, known := a.firstSeen[name]; known {
		age = max(age, s.age+a.elapsed()-s.at)
	}
	return age
}
