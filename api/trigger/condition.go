package trigger

import (
	"context"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConditionPoller evaluates a condition repeatedly, in the elected replica, and publishes
// its changes. The fields are set before Start; the conditions have no transition time.
type ConditionPoller struct {
	// Initial is the condition until an evaluation has succeeded.
	Initial metav1.Condition
	// Evaluate returns the current condition. After an error the last one stays.
	Evaluate func(context.Context) (metav1.Condition, error)
	// Delay is the wait after an evaluation with this result.
	Delay func(metav1.Condition, error) time.Duration
	// OnChange is called with each condition that differs from the one before.
	OnChange func(context.Context, metav1.Condition)
	// OnError is called with each error of Evaluate, except after the end of ctx.
	OnError func(context.Context, error)

	last atomic.Pointer[metav1.Condition]
}

// Condition returns the last condition. It is safe for concurrent use.
func (p *ConditionPoller) Condition() metav1.Condition {
	if c := p.last.Load(); c != nil {
		return *c
	}
	return p.Initial
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (p *ConditionPoller) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable. It returns nil when ctx ends.
func (p *ConditionPoller) Start(ctx context.Context) error {
	return (&Poller{Check: p.check}).Start(ctx)
}

func (p *ConditionPoller) check(ctx context.Context) time.Duration {
	c, err := p.Evaluate(ctx)
	switch {
	case err == nil:
		before := p.Condition()
		p.last.Store(&c)
		if c != before {
			p.OnChange(ctx, c)
		}
	case ctx.Err() == nil:
		p.OnError(ctx, err)
	}
	return p.Delay(c, err)
}
