package hubclient

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/transport"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// keptObjects counts what the cache of a connection keeps, by kind and name.
type keptObjects struct {
	mu    sync.Mutex
	bytes map[string]int64
	total int64
}

// set replaces the size of an object, and returns which bound is exceeded; empty for
// none.
func (k *keptObjects) set(key string, bytes int64) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.bytes == nil {
		k.bytes = map[string]int64{}
	}
	k.total += bytes - k.bytes[key]
	k.bytes[key] = bytes
	return exceededBound(len(k.bytes), k.total)
}

func (k *keptObjects) remove(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.total -= k.bytes[key]
	delete(k.bytes, key)
}

func exceededBound(objects int, bytes int64) string {
	switch {
	case objects > v1alpha1.MaxMailboxObjects:
		return fmt.Sprintf("makes more than %d objects in the mailbox", v1alpha1.MaxMailboxObjects)
	case bytes > v1alpha1.MaxMailboxBytes:
		return fmt.Sprintf("makes more than %d MiB in the mailbox", v1alpha1.MaxMailboxBytes>>20)
	}
	return ""
}

// boundObject is applied to each object before the cache keeps it. An object that is too
// large is emptied, and the connection ends.
func (c *Connection) boundObject(o any) (any, error) {
	object, ok := o.(client.Object)
	if !ok {
		return o, nil
	}
	object.SetManagedFields(nil)
	if mailbox.DecodedBytes(object) <= v1alpha1.MaxMailboxObjectBytes {
		return object, nil
	}
	c.reportExceededLimit(&transport.LimitError{Request: "a request for the mailbox", Bound: fmt.Sprintf("has an object of more than %d MiB", v1alpha1.MaxMailboxObjectBytes>>20)})
	empty := reflect.New(reflect.TypeOf(object).Elem()).Interface().(client.Object)
	empty.SetNamespace(object.GetNamespace())
	empty.SetName(v1alpha1.Truncate(object.GetName(), 253))
	return empty, nil
}

// countKept counts what an informer keeps. Its events are in the order in which its
// objects change; those of boundObject are not.
func (c *Connection) countKept(informer cache.Informer) error {
	count := func(event any) {
		o, ok := event.(client.Object)
		if !ok {
			return
		}
		if bound := c.kept.set(objectKey(o), mailbox.DecodedBytes(o)); bound != "" {
			c.reportExceededLimit(&transport.LimitError{Request: "a watch of the mailbox", Bound: bound})
		}
	}
	_, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    count,
		UpdateFunc: func(_, o any) { count(o) },
		DeleteFunc: func(event any) {
			if unknown, ok := event.(toolscache.DeletedFinalStateUnknown); ok {
				event = unknown.Obj
			}
			if o, ok := event.(client.Object); ok {
				c.kept.remove(objectKey(o))
			}
		},
	})
	return err
}

func objectKey(o client.Object) string { return fmt.Sprintf("%T %s", o, o.GetName()) }

// newInformer returns an informer that lists page by page.
func (c *Connection) newInformer(from toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(c.newLister(from, object), object, resync, indexers)
}

func (c *Connection) newLister(from toolscache.ListerWatcher, object runtime.Object) *pagedLister {
	kind := fmt.Sprintf("%T", object)
	return &pagedLister{
		next: toolscache.ToListerWatcherWithContext(from), exceeded: c.reportExceededLimit,
		failed: func(err error) { c.reportWatchFailure(kind, err) },
		check:  func(o runtime.Object) error { return checkObject(o, object, c.endpoint.Namespace) },
	}
}

// pagedLister lists in pages, so that each answer is small, and bounds all pages
// together. Streamed lists are not used: the reflector would keep all of their objects
// before any of them is bounded.
type pagedLister struct {
	next     toolscache.ListerWatcherWithContext
	exceeded func(*transport.LimitError)
	// check returns what is wrong with an object; failed counts failures.
	check  func(runtime.Object) error
	failed func(error)
}

// IsWatchListSemanticsUnSupported tells the reflector not to stream lists.
func (*pagedLister) IsWatchListSemanticsUnSupported() bool { return true }

// List implements toolscache.Lister.
func (p *pagedLister) List(options metav1.ListOptions) (runtime.Object, error) {
	return p.ListWithContext(context.Background(), options)
}

// Watch implements toolscache.Watcher.
func (p *pagedLister) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return p.WatchWithContext(context.Background(), options)
}

// WatchWithContext implements toolscache.WatcherWithContext.
func (p *pagedLister) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := p.next.WatchWithContext(ctx, options)
	if err != nil {
		p.reportFailure(ctx, err)
		return nil, err
	}
	return observeWatch(w, p.check, func(err error) { p.reportFailure(ctx, err) }), nil
}

func (p *pagedLister) reportFailure(ctx context.Context, err error) {
	if ctx.Err() == nil {
		p.failed(err)
	}
}

// ListWithContext implements toolscache.ListerWithContext. It reads the newest state:
// an older one from the API server's cache comes in one answer.
func (p *pagedLister) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list, err := p.listPages(ctx, options)
	if err != nil {
		p.reportFailure(ctx, err)
	}
	return list, err
}

func (p *pagedLister) listPages(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.ResourceVersion, options.ResourceVersionMatch = "", ""
	options.Limit, options.Continue = transport.MailboxPageSize, ""
	var all []runtime.Object
	var bytes int64
	for {
		page, err := p.next.ListWithContext(ctx, options)
		if err != nil {
			return nil, err
		}
		items, err := meta.ExtractList(page)
		if err != nil {
			return nil, fmt.Errorf("reading a list: %w", err)
		}
		for _, item := range items {
			if err := p.check(item); err != nil {
				return nil, err
			}
			if o, ok := item.(client.Object); ok {
				o.SetManagedFields(nil)
			}
			bytes += mailbox.DecodedBytes(item)
		}
		all = append(all, items...)
		if bound := exceededBound(len(all), bytes); bound != "" {
			err := &transport.LimitError{Request: "a list of the mailbox", Bound: bound}
			p.exceeded(err)
			return nil, err
		}
		list, err := meta.ListAccessor(page)
		if err != nil {
			return nil, fmt.Errorf("reading a list: %w", err)
		}
		if list.GetResourceVersion() == "" {
			return nil, fmt.Errorf("reading a list: %w", errAnotherObject)
		}
		options.Continue = list.GetContinue()
		if options.Continue == "" {
			return page, meta.SetList(page, all)
		}
		if len(items) == 0 {
			return nil, errors.New("reading a list: a page is empty, and not the last")
		}
	}
}
