package controlplane

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// relistInterval is the delay between attempts to list objects again.
const relistInterval = 20 * time.Millisecond

// Change is a change of an object.
type Change[T client.Object] struct {
	// Type is Added, Modified, or Deleted.
	Type   watch.EventType
	Object T
	// Preexisting marks an object of the first list. Its Type is Added.
	Preexisting bool
}

// WatchObjects watches the objects of a list's kind through a client, as Watch does.
func WatchObjects[T client.Object](ctx context.Context, c client.WithWatch, list client.ObjectList, onChange func(Change[T]), o ...client.ListOption) (stop func(), err error) {
	withRaw := func(options metav1.ListOptions) client.ListOption {
		merged := (&client.ListOptions{}).ApplyOptions(o)
		merged.Raw = &options
		return merged
	}
	stop, err = Watch(ctx, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			into := list.DeepCopyObject().(client.ObjectList)
			return into, c.List(ctx, into, withRaw(options))
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, list.DeepCopyObject().(client.ObjectList), withRaw(options))
		},
	}, onChange)
	if err != nil {
		return nil, fmt.Errorf("watching %T: %w", list, err)
	}
	return stop, nil
}

// Watch calls onChange for each existing object, returns, and calls it for each change from then on,
// one at a time, until ctx ends or stop is called. stop waits for the last call. Watches that a busy
// API server ends continue where they ended. Where it answers 410 Gone, also after a restart, the
// objects are listed again: onChange gets the differences, deletions first, and states in between
// are missed. After a restore to lower versions nothing comes until the versions have caught up.
func Watch[T client.Object](ctx context.Context, source *cache.ListWatch, onChange func(Change[T])) (stop func(), err error) {
	w := &objectWatch[T]{source: source, onChange: onChange, known: map[types.UID]T{}}
	version, err := w.relist(ctx, true)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { w.run(ctx, version) })
	return func() { cancel(); done.Wait() }, nil
}

type objectWatch[T client.Object] struct {
	source   *cache.ListWatch
	onChange func(Change[T])
	// known are copies of the existing objects: onChange may keep and change its own.
	known map[types.UID]T
}

// relist reports the differences to a new list and returns its version.
func (w *objectWatch[T]) relist(ctx context.Context, isFirst bool) (version string, err error) {
	list, err := w.source.ListWithContext(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("listing objects: %w", err)
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return "", err
	}
	var objects []T
	deleted := maps.Clone(w.known)
	err = meta.EachListItemWithAlloc(list, func(item runtime.Object) error {
		object, ok := item.(T)
		if !ok {
			return fmt.Errorf("%T in a list is not of the watched kind", item)
		}
		objects = append(objects, object)
		delete(deleted, object.GetUID())
		return nil
	})
	if err != nil {
		return "", err
	}
	for _, object := range deleted {
		object.SetResourceVersion(accessor.GetResourceVersion())
		w.report(Change[T]{Type: watch.Deleted, Object: object})
	}
	for _, object := range objects {
		if last, isKnown := w.known[object.GetUID()]; !isKnown {
			w.report(Change[T]{Type: watch.Added, Object: object, Preexisting: isFirst})
		} else if last.GetResourceVersion() != object.GetResourceVersion() {
			w.report(Change[T]{Type: watch.Modified, Object: object})
		}
	}
	return accessor.GetResourceVersion(), nil
}

func (w *objectWatch[T]) report(c Change[T]) {
	if c.Type == watch.Deleted {
		delete(w.known, c.Object.GetUID())
	} else {
		w.known[c.Object.GetUID()] = c.Object.DeepCopyObject().(T)
	}
	w.onChange(c)
}

// run watches from a version of the API server until ctx ends.
func (w *objectWatch[T]) run(ctx context.Context, version string) {
	for {
		if events, err := watchtools.NewRetryWatcherWithContext(ctx, version, w.source); err == nil {
			for e := range events.ResultChan() {
				if object, ok := e.Object.(T); ok && e.Type != watch.Error {
					w.report(Change[T]{Type: e.Type, Object: object})
				}
			}
			events.Stop()
		}
		err := wait.PollUntilContextCancel(ctx, relistInterval, false, func(ctx context.Context) (bool, error) {
			var err error
			version, err = w.relist(ctx, false)
			return err == nil, nil
		})
		if err != nil {
			return
		}
	}
}
