package trigger

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// MaxRetryDelay is the longest delay between retries after errors. controller-runtime's default,
// 1000 s, outlasts what a request depends on: a webhook that is up again, a quota that is raised.
const MaxRetryDelay = 30 * time.Second

// NewRateLimiter backs off from 5 ms to MaxRetryDelay for each request. Every controller has it,
// or one that its own requests need: LatencyLimiter is built on it, the relay's waits for members
// that may be back at any moment, the agent's reports fail at most once per interval, and its
// registration never asks the hub more than once a second. Unlike controller-runtime's default, it
// has no bucket of 10 a second that all requests share: workers, and the limits of the clients, bound
// retries together.
func NewRateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, MaxRetryDelay)
}
