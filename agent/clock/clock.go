// Package clock tells how long a process has been running, by a clock that is never
// behind.
package clock

import (
	"sync"
	"time"
)

// Clock counts from when it was made. What it counts is the longer of what the
// machine's monotonic clock says and what its wall clock does, step by step: the
// former stands still while a virtual machine is paused or suspended, and the latter
// is put forward then. A wall clock that is put back does not move it, one that is put
// forward for other reasons lets it run ahead; both ends only sooner what holds for a
// while. It is safe for concurrent use.
type Clock struct {
	mu      sync.Mutex
	now     func() time.Time
	last    time.Time
	elapsed time.Duration
}

// New returns a clock that begins at 0.
func New() *Clock { return newClock(time.Now) }

func newClock(now func() time.Time) *Clock { return &Clock{now: now, last: now()} }

// Elapsed is how long it has been running.
func (c *Clock) Elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.elapsed += max(0, now.Sub(c.last), now.Round(0).Sub(c.last.Round(0)))
	c.last = now
	return c.elapsed
}
