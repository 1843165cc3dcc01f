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

// NotifyOnEvents calls notify at every event of a kind. notify must not block.
//
// Invariant: after NotifyOnEvents has returned, every change of what is read from the cache
// is notified. A source.Kind given to a running controller does not guarantee that: it is
// registered in the background, and deletions before that are never reported.
func NotifyOnEvents(ctx context.Context, c cache.Cache, obj client.Object, notify func()) error {
	informer, err := c.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("getting the informer of %T: %w", obj, err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { notify() },
		UpdateFunc: func(any, any) { notify() },
		DeleteFunc: func(any) { notify() },
	})
	if err != nil {
		return fmt.Errorf("adding an event handler for %T: %w", obj, err)
	}
	return nil
}

// Watch gives a controller, which may be running, the events of a kind, with the invariant
// of NotifyOnEvents.
func Watch(ctx context.Context, to controller.Controller, c cache.Cache, obj client.Object, h handler.EventHandler, p ...predicate.Predicate) error {
	informer, err := c.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("getting the informer of %T: %w", obj, err)
	}
	return to.Watch(&source.Informer{Informer: informer, Handler: h, Predicates: p})
}
