package member

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// statusEvery is how often a member's status is written at most while no
	// condition changes.
	statusEvery = time.Second
	// conditionBurst is how many changes of conditions are written at once; more of
	// them, of a member that comes and goes, wait for statusEvery too.
	conditionBurst = 5
)

// paces keep the writes of status apart, by member.
type paces struct {
	mu sync.Mutex
	of map[string]*pace
}

type pace struct {
	last    time.Time
	changes *rate.Limiter
}

// wait tells how long a write is to wait; 0: it may be done now, and is counted.
func (p *paces) wait(member string, urgent bool, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = map[string]*pace{}
	}
	at := p.of[member]
	if at == nil {
		at = &pace{changes: rate.NewLimiter(rate.Every(statusEvery), conditionBurst)}
		p.of[member] = at
	}
	if since := now.Sub(at.last); since < statusEvery && (!urgent || !at.changes.AllowN(now, 1)) {
		return statusEvery - max(0, since)
	}
	at.last = now
	return 0
}

func (p *paces) forget(member string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.of, member)
}
