package clock

import (
	"sync"
	"time"
)

// Ages tell how old things are of which it is stored by the wall clock when they began.
// What a process has seen since, it knows by its own clock: a wall clock that is put
// back makes nothing younger. What was before is known by the wall clock alone, so that
// one that is put back while no process runs does. The zero value goes by the wall
// clock. It is safe for concurrent use.
type Ages struct {
	mu      sync.Mutex
	elapsed func() time.Duration
	wall    func() time.Time
	seen    map[string]sighting
}

// sighting is how old a thing was when it was first seen.
type sighting struct{ age, at time.Duration }

// NewAges returns Ages by a clock that nobody sets.
func NewAges(elapsed func() time.Duration) *Ages { return &Ages{elapsed: elapsed, wall: time.Now} }

// Keep takes note of the things that there are, by their names, which are never used
// again, and forgets all others.
func (a *Ages) Keep(began map[string]time.Time) {
	if a == nil || a.elapsed == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now, next := a.elapsed(), make(map[string]sighting, len(began))
	for name, since := range began {
		s, known := a.seen[name]
		if !known {
			s = sighting{age: max(0, a.wall().Sub(since)), at: now}
		}
		next[name] = s
	}
	a.seen = next
}

// Of is how old a thing is that began at a time by the wall clock.
func (a *Ages) Of(name string, began time.Time) time.Duration {
	if a == nil || a.elapsed == nil {
		return time.Since(began)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	age := a.wall().Sub(began)
	if s, known := a.seen[name]; known {
		age = max(age, s.age+a.elapsed()-s.at)
	}
	return age
}
