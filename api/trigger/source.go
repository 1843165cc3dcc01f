package trigger

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Source puts requests into the queue of the controller that it is a source of. It never
// blocks, and keeps what is enqueued before the controller starts. The zero Source is
// ready for use.
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

// Enqueue adds a request to the queue.
func (s *Source[request]) Enqueue(r request) { s.EnqueueAfter(r, 0) }

// EnqueueAfter adds a request to the queue after a delay, which is none where the
// controller has not started yet.
func (s *Source[request]) EnqueueAfter(r request, delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue != nil {
		s.queue.AddAfter(r, delay)
		return
	}
	if s.early == nil {
		s.early = map[request]bool{}
	}
	s.early[r] = true
}

// After returns a handler that answers each event with the request of its object, after a delay.
// An event without delay brings the request forward, and both are answered by one reconcile
// where the controller has a priority queue, controller-runtime's default.
func After(requestFor func(client.Object) (reconcile.Request, time.Duration)) handler.EventHandler {
	enqueue := func(o client.Object, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		request, delay := requestFor(o)
		queue.AddAfter(request, delay)
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(e.Object, queue)
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(e.ObjectNew, queue)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(e.Object, queue)
		},
	}
}

// Always returns a handler that answers every event with the same request, for a controller
// that has only one.
func Always(request reconcile.Request) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{request}
	})
}
