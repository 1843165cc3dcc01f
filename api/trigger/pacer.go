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
	// StatusWriteInterval is the shortest time between two writes of a status while no
	// condition changes.
	StatusWriteInterval = time.Second
	// conditionBurst is how many condition changes are written without a wait. Further
	// changes, of an object that flaps, are spaced by StatusWriteInterval too.
	conditionBurst = 5
)

// StatusPacer spaces the status writes of the objects of one kind, by name. The zero
// StatusPacer is ready for use. It is safe for concurrent use.
type StatusPacer struct {
	mu     sync.Mutex
	states map[string]*paceState
}

type paceState struct {
	lastWrite        time.Time
	conditionChanges *rate.Limiter
}

// ReserveWrite returns how long to wait before a write. At 0 the write counts as made. An
// urgent write, see ConditionsChanged, does not wait.
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

// Forget drops an object that is gone.
func (p *StatusPacer) Forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.states, name)
}

// ConditionsChanged reports whether the status or reason of a condition differs.
func ConditionsChanged(before, after []metav1.Condition) bool {
	if len(before) != len(after) {
		return true
	}
	for i := range after {
		now := &after[i]
		previous := meta.FindStatusCondition(before, now.Type)
		if previous == nil || previous.Status != now.Status || previous.Reason != now.Reason {
			return true
		}
	}
	return false
}

// Sleep waits for d, or until ctx ends; then it returns the error of ctx.
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
