//go:build linux

package testenv

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// recheckInterval is how often a condition is checked while its object does not change: it may rest
// on more than the object.
const recheckInterval = 500 * time.Millisecond

// AwaitObject waits until an object exists and a condition of it holds, also in a test's Cleanup. It
// returns the object as last seen, zero for never, and whether the condition held within Patience. A
// watch tells each state of the object, and costs the API server less than to be asked again and
// again.
func AwaitObject[T client.Object](t *testing.T, c client.WithWatch, key client.ObjectKey, holds func(T) bool) (last T, held bool) {
	t.Helper()
	last = reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T)
	kind, err := apiutil.GVKForObject(last, c.Scheme())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Patience)
	defer cancel()
	for ctx.Err() == nil {
		list, err := c.Scheme().New(kind.GroupVersion().WithKind(kind.Kind + "List"))
		require.NoError(t, err)
		w, err := c.Watch(ctx, list.(client.ObjectList), client.InNamespace(key.Namespace), client.MatchingFields{"metadata.name": key.Name})
		if err == nil {
			held = followObject(ctx, w, &last, holds)
			w.Stop()
		}
		if held {
			return last, true
		}
		// The API server is restarting, or has ended the watch.
		select {
		case <-ctx.Done():
		case <-time.After(minPollInterval):
		}
	}
	return last, false
}

// followObject returns whether the condition held before the watch ended.
func followObject[T client.Object](ctx context.Context, w watch.Interface, last *T, holds func(T) bool) bool {
	recheck := time.NewTicker(recheckInterval)
	defer recheck.Stop()
	exists := false
	for {
		select {
		case <-ctx.Done():
			return false
		case <-recheck.C:
		case e, more := <-w.ResultChan():
			object, isObject := e.Object.(T)
			if !more || !isObject {
				return false
			}
			*last, exists = object, e.Type != watch.Deleted
		}
		if exists && holds(*last) {
			return true
		}
	}
}
