package trigger

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// StatusWriteInterval is how often a status is written at most while no condition changes.
	StatusWriteInterval = time.Second
	// conditionBurst is how many changes of conditions are written at once; more of
	// them, of an object that comes and goes, wait for Every too.
	conditionBurst = 5
)

// StatusPacer of the objects of one kind, by name. They are safe for concurrent use.
type StatusPacer struct {
	mu     sync.Mutex
	states map[string]*paceState
}

type paceState struct {
	lastWrite        time.Time
	conditionChanges *rate.Limiter
}

// ReserveWrite tells how long a write is to wait; 0: it may be done now, and is counted.
// What is urgent, as a condition that changes, does not wait.
func (p *StatusPacer) ReserveWrite(name string, urgent bool, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.states == nil {
		p.states = map[string]*paceState{}
	}
	at := p.states[name]
	if at == nil {
		at = &paceState{conditionChanges: rate.NewLimiter(rate.Every(StatusWriteInterval), conditionBurst)}
		p.states[name] = at
	}
	if since := now.Sub(at.lastWrite); since < StatusWriteInterval && (!urgent || !at.conditionChanges.AllowN(now, 1)) {
		return StatusWriteInterval - max(0, since)
	}
	at.lastWrite = now
	return 0
}

// Forget an object that is gone.
func (p *StatusPacer) Forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.states, name)
}

// ConditionsChanged tells whether a condition has come to say something else, which does not
// wait.
func ConditionsChanged(before, after []metav1.Condition) bool {
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

// Sleep waits for a while, or until the context ends, whose error it returns then.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
