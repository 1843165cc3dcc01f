package trigger

import (
	"context"
	"sync"

	"k8s.io/client-go/util/workqueue"
)

// Source puts requests into the queue of the controller that it is a source of.
// It never blocks, and what was poked before the controller starts is not lost.
type Source[request comparable] struct {
	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[request]
	early map[request]bool
}

// Start implements controller-runtime's source.TypedSource.
func (s *Source[request]) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[request]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = queue
	for r := range s.early {
		queue.Add(r)
	}
	s.early = nil
	return nil
}

// Enqueue has a request looked at.
func (s *Source[request]) Enqueue(r request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue != nil {
		s.queue.Add(r)
		return
	}
	if s.early == nil {
		s.early = map[request]bool{}
	}
	s.early[r] = true
}
