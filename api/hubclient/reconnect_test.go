package hubclient

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/transport"
)

// brokenConnection is how one call of connect ends.
type brokenConnection struct {
	established bool
	err         error
	minDelay    time.Duration
	brief       bool // less than a probe interval
	// trigger requests the next attempt as soon as this one has ended.
	trigger bool
}

// TestReconnectDelays: hub and agent wait longer after each failure, and briefly after a
// connection that worked, unless its watches fail.
func TestReconnectDelays(t *testing.T) {
	var (
		refused = brokenConnection{err: errors.New("connection refused")}
		lost    = brokenConnection{established: true, err: errors.New("connection lost")}
		stale   = brokenConnection{established: true, err: ErrWatchStale}
		watches = brokenConnection{established: true, err: &WatchError{errShortWatch}}
		limit   = brokenConnection{err: &transport.LimitError{}}
		brief   = brokenConnection{established: true, brief: true, err: apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no verb watch"))}
	)
	const second, minute = time.Second, time.Minute
	for name, tt := range map[string]struct {
		broken []brokenConnection
		want   []time.Duration
	}{
		"failures: up to the probe interval": {
			broken: []brokenConnection{refused, refused, refused, refused, refused, refused},
			want:   []time.Duration{second, 2 * second, 4 * second, 8 * second, 10 * second, 10 * second},
		},
		"a connection that worked starts over": {
			broken: []brokenConnection{refused, refused, refused, lost, lost, refused, stale},
			want:   []time.Duration{second, 2 * second, 4 * second, second, second, 2 * second, second},
		},
		"failing watches count as failures, though the connection worked": {
			broken: []brokenConnection{watches, watches, watches, watches, watches, lost, watches},
			want:   []time.Duration{second, 2 * second, 4 * second, 8 * second, 10 * second, second, 2 * second},
		},
		"a connection that worked briefly counts as a failure": {
			broken: []brokenConnection{brief, brief, brief, brief, brief, lost, brief},
			want:   []time.Duration{second, 2 * second, 4 * second, 8 * second, 10 * second, second, 2 * second},
		},
		"an exceeded limit: minutes, until the server answers otherwise": {
			broken: []brokenConnection{limit, limit, limit, limit, limit, lost, limit},
			want:   []time.Duration{minute, 2 * minute, 4 * minute, 8 * minute, 10 * minute, second, minute},
		},
		"the longer of both delays": {
			broken: []brokenConnection{
				{err: refused.err, minDelay: minute}, {err: refused.err, minDelay: second}, {err: limit.err, minDelay: 30 * second}, refused,
			},
			want: []time.Duration{minute, 2 * second, minute, 8 * second},
		},
		"a trigger ends a delay, and no more than that": {
			broken: []brokenConnection{refused, refused, {err: limit.err, trigger: true}, refused},
			want:   []time.Duration{second, 2 * second, 0, 8 * second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				trigger := make(chan struct{}, 1)
				attempts, recorded := 0, 0
				var ended time.Time
				KeepConnected(ctx, 10*time.Second, trigger, func(context.Context) (bool, error) {
					if attempts > 0 {
						want := tt.want[attempts-1]
						assert.GreaterOrEqual(t, time.Since(ended), want, "after attempt %d", attempts)
						assert.LessOrEqual(t, time.Since(ended), want+want/10, "after attempt %d", attempts)
					}
					if attempts == len(tt.broken) {
						cancel()
						return false, ctx.Err()
					}
					attempts++
					lasts := time.Hour // which is no delay
					if tt.broken[attempts-1].brief {
						lasts = 100 * time.Millisecond
					}
					apitest.AdvanceClock(lasts)
					ended = time.Now()
					return tt.broken[attempts-1].established, tt.broken[attempts-1].err
				}, func(err error) time.Duration {
					recorded++
					assert.Equal(t, tt.broken[attempts-1].err, err)
					if tt.broken[attempts-1].trigger {
						trigger <- struct{}{}
					}
					return tt.broken[attempts-1].minDelay
				})
				assert.Equal(t, len(tt.broken), attempts)
				assert.Equal(t, attempts, recorded, "what ends with the context is no failure")
			})
		})
	}
}

// TestReconnectingStopsWithContext: at once, whether it waits, is connected, or has just
// recorded why it is not.
func TestReconnectingStopsWithContext(t *testing.T) {
	for name, during := range map[string]string{"while it waits": "delay", "while it is connected": "connect", "by what records the failure": "record"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				attempts, began := 0, time.Now()
				done := make(chan struct{})
				go func() {
					defer close(done)
					KeepConnected(ctx, 10*time.Second, nil, func(ctx context.Context) (bool, error) {
						attempts++
						if during == "connect" {
							<-ctx.Done()
							return true, nil
						}
						return false, errors.New("connection refused")
					}, func(error) time.Duration {
						assert.NotEqual(t, "connect", during)
						if during == "record" {
							cancel()
						}
						return time.Hour
					})
				}()
				synctest.Wait()
				cancel()
				<-done
				assert.Equal(t, 1, attempts)
				assert.Equal(t, began, time.Now())
			})
		})
	}
}
