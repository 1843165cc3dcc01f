package ui

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// One caller has a few requests at a time, and takes no slots that others need.
func TestRequestsAtATimeAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newRequestLimit()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		running, turn := make(chan func(), 1000), make(chan struct{})
		for range 100 {
			go func() {
				release, err := l.acquire(ctx, "greedy")
				if err == nil {
					running <- release
				}
				turn <- struct{}{}
			}()
		}
		go func() {
			for range turn {
			}
		}()
		synctest.Wait()
		assert.Len(t, running, requestsOfACaller)

		release, err := l.acquire(ctx, "other")
		require.NoError(t, err)
		release()

		(<-running)()
		synctest.Wait()
		assert.Len(t, running, requestsOfACaller, "the next one has its turn")

		for i := range requestsOfAll - requestsOfACaller {
			_, err := l.acquire(ctx, string(rune('a'+i)))
			require.NoError(t, err)
		}
		ended, end := context.WithCancel(ctx)
		end()
		_, err = l.acquire(ended, "one too many")
		require.ErrorIs(t, err, context.Canceled)
		assert.NotContains(t, l.callers, "one too many")
		cancel()
		synctest.Wait()
		assert.Len(t, l.callers, 1+requestsOfAll-requestsOfACaller)
		close(turn)
	})
}
