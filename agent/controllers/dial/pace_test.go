package dial

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What fails is not tried more often because more happens meanwhile.
func TestFailedSyncBacksOffDespiteRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		pokes := make(chan struct{}, 1)
		tries, failing := 0, true
		done := make(chan error, 1)
		go func() {
			done <- runSyncLoop(ctx, nil, pokes, func(context.Context) (time.Duration, error) {
				tries++
				if failing {
					return 0, errors.New("away")
				}
				return 0, nil
			})
		}()
		began := time.Now()
		for time.Since(began) < time.Hour {
			notify(pokes)
			time.Sleep(100 * time.Millisecond) //nolint:forbidigo // of the bubble's clock
		}
		synctest.Wait()
		most := int(time.Hour/maxSyncBackoff) + 10
		require.LessOrEqual(t, tries, most)
		require.Greater(t, tries, most-20)

		// It is tried again without anybody's poking, and then each poke counts.
		failing, tries = false, 0
		time.Sleep(maxSyncBackoff) //nolint:forbidigo // of the bubble's clock
		synctest.Wait()
		require.Positive(t, tries)
		before := tries
		notify(pokes)
		synctest.Wait()
		require.Equal(t, before+1, tries)
		time.Sleep(time.Hour) //nolint:forbidigo // of the bubble's clock
		synctest.Wait()
		require.Equal(t, before+1, tries, "nothing is to be tried again")
		cancel()
		notify(pokes)
		require.NoError(t, <-done)
	})
}

func TestSyncContinuesAfterRequestedDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pokes, held := make(chan struct{}, 1), make(chan error, 1)
		tries := 0
		done := make(chan error, 1)
		go func() {
			done <- runSyncLoop(t.Context(), held, pokes, func(context.Context) (time.Duration, error) {
				tries++
				if tries < 3 {
					return conflictRetryDelay, nil
				}
				return 0, nil
			})
		}()
		notify(pokes)
		time.Sleep(2*conflictRetryDelay + time.Millisecond) //nolint:forbidigo // of the bubble's clock
		synctest.Wait()
		require.Equal(t, 3, tries)
		away := errors.New("away")
		held <- away
		require.ErrorIs(t, <-done, away)
	})
}
