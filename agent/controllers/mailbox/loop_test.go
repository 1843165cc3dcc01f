package mailbox

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/trigger"
)

func TestFailedSyncBacksOffDespiteRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		requests := make(chan struct{}, 1)
		syncs, failing := 0, true
		done := make(chan error, 1)
		go func() {
			done <- runSyncLoop(ctx, nil, requests, func(context.Context) (time.Duration, error) {
				syncs++
				if failing {
					return 0, errors.New("unreachable")
				}
				return 0, nil
			})
		}()
		began := time.Now()
		for time.Since(began) < time.Hour {
			notify(requests)
			advance(100 * time.Millisecond)
		}
		limit := int(time.Hour/maxSyncBackoff) + 10
		require.LessOrEqual(t, syncs, limit)
		require.Greater(t, syncs, limit-20)

		// The retry needs no request; after a success every request counts again.
		failing, syncs = false, 0
		advance(maxSyncBackoff)
		require.Positive(t, syncs)
		before := syncs
		notify(requests)
		synctest.Wait()
		require.Equal(t, before+1, syncs)
		advance(time.Hour)
		require.Equal(t, before+1, syncs, "a successful sync needs no retry")
		cancel()
		notify(requests)
		require.NoError(t, <-done)
	})
}

// advance moves the fake clock and waits until everything it woke is blocked again.
func advance(by time.Duration) {
	apitest.AdvanceClock(by)
	synctest.Wait()
}

func TestSyncContinuesAfterRequestedDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests, broken := make(chan struct{}, 1), make(chan error, 1)
		syncs := 0
		done := make(chan error, 1)
		go func() {
			done <- runSyncLoop(t.Context(), broken, requests, func(context.Context) (time.Duration, error) {
				syncs++
				if syncs < 3 {
					return trigger.ConflictRetryDelay, nil
				}
				return 0, nil
			})
		}()
		notify(requests)
		advance(2*trigger.ConflictRetryDelay + time.Millisecond)
		require.Equal(t, 3, syncs)
		lost := errors.New("connection lost")
		broken <- lost
		require.ErrorIs(t, <-done, lost)
	})
}
