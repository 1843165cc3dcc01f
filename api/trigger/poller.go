package trigger

import (
	"context"
	"time"
)

// Poller repeats a check for as long as its manager runs. Use it only for what no
// watch can tell.
type Poller struct {
	// Check does the work and returns the wait before the next call. It handles its own
	// errors.
	Check func(ctx context.Context) time.Duration
	// OnEveryReplica polls without leader election.
	OnEveryReplica bool
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (p *Poller) NeedLeaderElection() bool { return !p.OnEveryReplica }

// Start implements manager.Runnable. It returns nil when ctx ends.
func (p *Poller) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		if Sleep(ctx, p.Check(ctx)) != nil {
			return nil
		}
	}
	return nil
}
