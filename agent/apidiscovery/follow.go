package apidiscovery

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// NotifyOnEvents has something done at every event of a kind; it must not block. When
// Follow returns, no event can be missed any more by whoever reads from the cache
// from then on. That cannot be said of a source.Kind that a running controller is
// given: it is waited for beside what the controller does, and what is deleted
// meanwhile is never told of.
func NotifyOnEvents(ctx context.Context, c cache.Cache, obj client.Object, do func()) error {
	informer, err := c.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("following %T: %w", obj, err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { do() },
		UpdateFunc: func(any, any) { do() },
		DeleteFunc: func(any) { do() },
	})
	if err != nil {
		return fmt.Errorf("following %T: %w", obj, err)
	}
	return nil
}

// Watch gives a controller, which may be running, the events of a kind. What
// holds of Follow holds when Watch returns: what the controller deletes first of
// all, it is told to be gone.
func Watch(ctx context.Context, to controller.Controller, c cache.Cache, obj client.Object, h handler.EventHandler, p ...predicate.Predicate) error {
	informer, err := c.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching %T: %w", obj, err)
	}
	return to.Watch(&source.Informer{Informer: informer, Handler: h, Predicates: p})
}
