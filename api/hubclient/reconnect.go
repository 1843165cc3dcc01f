package hubclient

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// FirstRetryDelay is the delay before the first retry; it doubles up to the probe
// interval.
const FirstRetryDelay = time.Second

// KeepConnected calls connect again after each end of a connection, until ctx ends. connect
// returns when the connection is broken; established reports whether it ever worked. The delay
// starts over after a connection that has worked for a probe interval.
// onBroken records why it ended, and returns the least delay before the next attempt. A
// trigger ends that delay.
func KeepConnected(ctx context.Context, probeInterval time.Duration, trigger <-chan struct{},
	connect func(context.Context) (established bool, err error), onBroken func(error) (minDelay time.Duration),
) {
	firstDelay := min(FirstRetryDelay, probeInterval)
	delay := firstDelay
	var limits limitBackoff
	for ctx.Err() == nil {
		began := time.Now()
		established, err := connect(ctx)
		if ctx.Err() != nil {
			return
		}
		// Watches that a proxy ends, or that are refused once all is listed, would else be opened
		// again all the time.
		if established && time.Since(began) >= probeInterval && !errors.As(err, new(*WatchError)) {
			delay = firstDelay
		}
		WaitForTrigger(ctx, trigger, max(delay, limits.next(err, probeInterval), onBroken(err)))
		delay = min(2*delay, probeInterval)
	}
}

// limitBackoff computes the delays after a server has exceeded a limit. What it makes
// this process read until then is lost work, and it likely does the same again.
type limitBackoff struct{ last time.Duration }

// next returns the delay after err, which ended a connection: 0 if it is about no limit.
// It doubles from 6 to 60 probe intervals.
func (b *limitBackoff) next(err error, probeInterval time.Duration) time.Duration {
	if kind, _ := ClassifyError(err); err == nil || kind != LimitFailure {
		b.last = 0
		return 0
	}
	b.last = min(max(2*b.last, 6*probeInterval), 60*probeInterval)
	return b.last
}

// WaitForTrigger waits for d, a trigger, or the end of ctx.
func WaitForTrigger(ctx context.Context, trigger <-chan struct{}, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-trigger:
	case <-time.After(wait.Jitter(d, 0.1)):
	}
}
