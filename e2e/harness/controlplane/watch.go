package controlplane

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ListAndWatch reads the objects of a kind into list and watches them from there, until ctx ends: what
// is in the list is no event. A busy API server ends watches; this one is opened again where it ended.
// It ends where the API server has forgotten that place, as after its restart.
func ListAndWatch(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) (watch.Interface, error) {
	kind := list.DeepCopyObject().(client.ObjectList)
	if err := c.List(ctx, list, o...); err != nil {
		return nil, fmt.Errorf("listing %T: %w", list, err)
	}
	w, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			of := (&client.ListOptions{}).ApplyOptions(o)
			of.Raw = &options
			return c.Watch(ctx, kind, of)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching %T: %w", list, err)
	}
	return w, nil
}
