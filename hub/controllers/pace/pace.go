// Package pace keeps the writes of status apart, and waits between tries.
package pace

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// Every is how often a status is written at most while no condition changes.
	Every = time.Second
	// conditionBurst is how many changes of conditions are written at once; more of
	// them, of an object that comes and goes, wait for Every too.
	conditionBurst = 5
)

// Paces of the objects of one kind, by name. They are safe for concurrent use.
type Paces struct {
	mu sync.Mutex
	of map[string]*pace
}

type pace struct {
	last    time.Time
	changes *rate.Limiter
}

// Wait tells how long a write is to wait; 0: it may be done now, and is counted.
// What is urgent, as a condition that changes, does not wait.
func (p *Paces) Wait(name string, urgent bool, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = map[string]*pace{}
	}
	at := p.of[name]
	if at == nil {
		at = &pace{changes: rate.NewLimiter(rate.Every(Every), conditionBurst)}
		p.of[name] = at
	}
	if since := now.Sub(at.last); since < Every && (!urgent || !at.changes.AllowN(now, 1)) {
		return Every - max(0, since)
	}
	at.last = now
	return 0
}

// Forget an object that is gone.
func (p *Paces) Forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.of, name)
}

// Urgent tells whether a condition has come to say something else, which does not
// wait.
func Urgent(before, after []metav1.Condition) bool {
	if len(before) != len(after) {
		return true
	}
	for i := range after {
		now := &after[i]
		was := meta.FindStatusCondition(before, now.Type)
		if was == nil || was.Status != now.Status || was.Reason != now.Reason {
			return true
		}
	}
	return false
}

// Pause waits for a while, or until the context ends, whose error it returns then.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
