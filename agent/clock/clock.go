// Package clock measures how long a process has been running, with a clock that is
// never behind.
package clock

import (
	"sync"
	"time"
)

// Clock counts the time since it was created. Per step it counts the longer of the
// monotonic and the wall clock: the former stops while a virtual machine is paused
// or suspended, and the latter is set forward afterwards. Setting the wall clock
// back has no effect; setting it forward makes the Clock run ahead, which only ends
// leases and timeouts early. It is safe for concurrent use.
type Clock struct {
	mu      sync.Mutex
	now     func() time.Time
	last    time.Time
	elapsed time.Duration
}

// New returns a clock that starts at 0.
func New() *Clock { return newClock(time.Now) }

func newClock(now func() time.Time) *Clock { return &Clock{now: now, last: now()} }

// Elapsed returns the time since the clock was created.
func (c *Clock) Elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.elapsed += max(0, now.Sub(c.last), now.Round(0).Sub(c.last.Round(0)))
	c.last = now
	return c.elapsed
}
