package playedfleet

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// store holds objects as the cache of a hub does. Objects in it never change: put replaces
// them.
type store struct {
	mu      sync.RWMutex
	objects map[reflect.Type]map[client.ObjectKey]client.Object
}

func newStore() *store {
	return &store{objects: map[reflect.Type]map[client.ObjectKey]client.Object{}}
}

func (s *store) put(o client.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := reflect.TypeOf(o).Elem()
	if s.objects[kind] == nil {
		s.objects[kind] = map[client.ObjectKey]client.Object{}
	}
	s.objects[kind][client.ObjectKeyFromObject(o)] = o
}

// Get implements client.Reader.
func (s *store) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	kind := reflect.TypeOf(into).Elem()
	found := s.objects[kind][key]
	if found == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: strings.ToLower(kind.Name()) + "s"}, key.Name)
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(found.DeepCopyObject()).Elem())
	return nil
}

// List implements client.Reader. The items share memory with the store.
func (s *store) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	items := reflect.ValueOf(into).Elem().FieldByName("Items")
	if !items.IsValid() {
		return fmt.Errorf("%T has no items", into)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	ofKind := s.objects[items.Type().Elem()]
	keys := make([]client.ObjectKey, 0, len(ofKind))
	for key, object := range ofKind {
		if (o.Namespace == "" || o.Namespace == key.Namespace) && (o.LabelSelector == nil || o.LabelSelector.Matches(labels.Set(object.GetLabels()))) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b client.ObjectKey) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	list := reflect.MakeSlice(items.Type(), len(keys), len(keys))
	for i, key := range keys {
		list.Index(i).Set(reflect.ValueOf(ofKind[key]).Elem())
	}
	items.Set(list)
	return nil
}
