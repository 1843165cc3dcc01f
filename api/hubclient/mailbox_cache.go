package hubclient

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// errUnsupportedRead means that a cache of a mailbox cannot answer.
var errUnsupportedRead = errors.New("the cache of a mailbox has objects by name, of the watched kinds")

// mailboxCache has the watched objects of one mailbox.
//
// It stands in for informers, which have a dozen goroutines for each kind and a buffer of
// 1,024 events for each handler: several times what a connection to an idle member costs
// otherwise.
type mailboxCache struct {
	namespace string

	mu sync.RWMutex
	// kinds has the objects of each watched kind by name.
	kinds    map[cachedKind]map[string]keptObject
	objects  int
	bytes    int64
	handlers []eventHandler
	// rootEventAt is when a watch last delivered the report's root.
	rootEventAt time.Time
}

// cachedKind is a kind, whole or metadata only.
type cachedKind struct {
	schema.GroupVersionKind
	metadataOnly bool
}

// keptObject is an object that does not change, and its size.
type keptObject struct {
	client.Object
	bytes int64
}

// Event is a change of an object in a mailbox: Object is its last state, Before the one before that was
// known; nil for none.
type Event struct {
	Before, Object client.Object
	Deleted        bool
}

type eventHandler func(Event)

func newMailboxCache(namespace string) *mailboxCache {
	return &mailboxCache{namespace: namespace, kinds: map[cachedKind]map[string]keptObject{}}
}

var _ client.Reader = &mailboxCache{}

// kindOf returns the kind of an object or of a list.
func kindOf(o runtime.Object) (cachedKind, error) {
	gvk, err := apiutil.GVKForObject(o, Scheme)
	if err != nil {
		return cachedKind{}, err
	}
	switch o.(type) {
	case *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList:
		return cachedKind{gvk, true}, nil
	}
	return cachedKind{gvk, false}, nil
}

// addKind announces a kind, which setAll fills.
func (m *mailboxCache) addKind(kind cachedKind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kinds[kind] = map[string]keptObject{}
}

// setAll replaces all objects of a kind. One that has other content under its former
// resourceVersion has changed too: see mailboxWatch.watch.
func (m *mailboxCache) setAll(kind cachedKind, list []keptObject) {
	next := make(map[string]keptObject, len(list))
	for _, o := range list {
		next[o.GetName()] = o
	}
	m.mu.Lock()
	before := m.kinds[kind]
	for name, o := range next {
		if was, known := before[name]; known && was.isSame(o) {
			next[name] = was
		}
	}
	m.kinds[kind] = next
	m.objects += len(next) - len(before)
	for _, o := range before {
		m.bytes -= o.bytes
	}
	for _, o := range next {
		m.bytes += o.bytes
	}
	handlers := m.handlers
	m.mu.Unlock()
	for _, handle := range handlers {
		for name, o := range before {
			if _, kept := next[name]; !kept {
				handle(Event{Object: o.Object, Deleted: true})
			}
		}
		for name, o := range next {
			if was, known := before[name]; !known || !was.isSame(o) {
				handle(Event{Before: was.Object, Object: o.Object})
			}
		}
	}
}

// set stores an object that was created or changed, and returns which bound of the
// mailbox is exceeded; empty for none.
func (m *mailboxCache) set(kind cachedKind, o keptObject) (bound string) {
	m.mu.Lock()
	before, known := m.kinds[kind][o.GetName()]
	m.kinds[kind][o.GetName()] = o
	if !known {
		m.objects++
	}
	m.bytes += o.bytes - before.bytes
	m.noteEvent(kind, o)
	bound = exceededBound(m.objects, m.bytes)
	handlers := m.handlers
	m.mu.Unlock()
	for _, handle := range handlers {
		handle(Event{Before: before.Object, Object: o.Object})
	}
	return bound
}

func (m *mailboxCache) remove(kind cachedKind, o client.Object) {
	m.mu.Lock()
	if before, known := m.kinds[kind][o.GetName()]; known {
		delete(m.kinds[kind], o.GetName())
		m.objects--
		m.bytes -= before.bytes
	}
	m.noteEvent(kind, o)
	handlers := m.handlers
	m.mu.Unlock()
	for _, handle := range handlers {
		handle(Event{Object: o, Deleted: true})
	}
}

// exceededBound returns which bound the mailbox exceeds; empty for none.
func (m *mailboxCache) exceededBound() string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return exceededBound(m.objects, m.bytes)
}

// onEvent calls handle for each object that is created, changed or deleted, and for those
// that exist.
func (m *mailboxCache) onEvent(handle eventHandler) {
	m.mu.Lock()
	m.handlers = append(m.handlers[:len(m.handlers):len(m.handlers)], handle)
	var existing []client.Object
	for _, objects := range m.kinds {
		for _, o := range objects {
			existing = append(existing, o.Object)
		}
	}
	m.mu.Unlock()
	for _, o := range existing {
		handle(Event{Object: o})
	}
}

// noteEvent notes when an event of the report's root came. The caller holds m.mu.
func (m *mailboxCache) noteEvent(kind cachedKind, o client.Object) {
	if kind.Kind == "ClusterReport" && o.GetName() == v1alpha1.MailboxName {
		m.rootEventAt = time.Now()
	}
}

// sinceRootEvent returns how long ago a watch last delivered the report's root.
func (m *mailboxCache) sinceRootEvent() time.Duration {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return time.Since(m.rootEventAt)
}

// versionOf returns the resourceVersion of an object; empty if there is none.
func (m *mailboxCache) versionOf(kind cachedKind, name string) string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if o, found := m.kinds[kind][name]; found {
		return o.GetResourceVersion()
	}
	return ""
}

// Get implements client.Reader.
func (m *mailboxCache) Get(_ context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	kind, err := kindOf(into)
	if err != nil {
		return err
	}
	m.mu.RLock()
	objects, watched := m.kinds[kind]
	o, found := objects[key.Name]
	m.mu.RUnlock()
	switch {
	case !watched:
		return fmt.Errorf("reading %s %s: %w", kind.Kind, key, errUnsupportedRead)
	case !found || key.Namespace != m.namespace:
		return apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, key.Name)
	}
	read := client.GetOptions{}
	read.ApplyOptions(options)
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(o.read(read.UnsafeDisableDeepCopy)).Elem())
	return nil
}

// List implements client.Reader.
func (m *mailboxCache) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	kind, err := kindOf(into)
	if err != nil {
		return err
	}
	kind.Kind = strings.TrimSuffix(kind.Kind, "List")
	read := client.ListOptions{}
	read.ApplyOptions(options)
	m.mu.RLock()
	defer m.mu.RUnlock()
	objects, watched := m.kinds[kind]
	if !watched || read.LabelSelector != nil || read.FieldSelector != nil || read.Continue != "" || read.Limit != 0 {
		return fmt.Errorf("listing %s: %w", kind.Kind, errUnsupportedRead)
	}
	all := make([]runtime.Object, 0, len(objects))
	if read.Namespace == "" || read.Namespace == m.namespace {
		for _, o := range objects {
			all = append(all, o.read(read.UnsafeDisableDeepCopy))
		}
	}
	return meta.SetList(into, all)
}

// isSame reports whether both are one state of one object, with as much of its content.
func (k keptObject) isSame(o keptObject) bool {
	return k.GetUID() == o.GetUID() && k.GetResourceVersion() == o.GetResourceVersion() && k.bytes == o.bytes
}

// read returns a copy, or the object itself.
func (k keptObject) read(itself *bool) client.Object {
	if itself != nil && *itself {
		return k.Object
	}
	return k.DeepCopyObject().(client.Object)
}

// boundObject drops from an object what nobody reads, and measures it. It reports whether one is
// too large; then it is emptied.
func boundObject(o client.Object, kind cachedKind) (kept keptObject, tooLarge bool) {
	o.SetManagedFields(nil)
	o.GetObjectKind().SetGroupVersionKind(kind.GroupVersionKind)
	bytes := mailbox.DecodedBytes(o)
	if bytes <= v1alpha1.MaxMailboxObjectBytes {
		return keptObject{o, bytes}, false
	}
	empty := reflect.New(reflect.TypeOf(o).Elem()).Interface().(client.Object)
	empty.SetNamespace(o.GetNamespace())
	empty.SetName(v1alpha1.Truncate(o.GetName(), 253))
	return keptObject{empty, mailbox.DecodedBytes(empty)}, true
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
