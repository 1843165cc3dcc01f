package controlplane_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

// TestWatchRelistsAfterGone ends a watch, which continues where it ended, and then answers 410 Gone.
func TestWatchRelistsAfterGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		object := func(name, version string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: version}}
		}
		expired := &apierrors.NewResourceExpired("the version is too old").ErrStatus
		lists := []*corev1.PodList{
			{ListMeta: metav1.ListMeta{ResourceVersion: "10"}, Items: []corev1.Pod{*object("a", "1"), *object("b", "2"), *object("d", "3")}},
			{ListMeta: metav1.ListMeta{ResourceVersion: "20"}, Items: []corev1.Pod{*object("a", "11"), *object("c", "15"), *object("d", "16")}},
		}
		events := [][]watch.Event{
			{{Type: watch.Modified, Object: object("a", "11")}},
			{{Type: watch.Error, Object: expired}},
			{{Type: watch.Deleted, Object: object("c", "21")}, {Type: watch.Added, Object: object("c", "22")}},
		}
		var versions, changes []string
		stop, err := controlplane.Watch(t.Context(), &cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				list := lists[0]
				lists = lists[1:]
				return list, nil
			},
			WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
				versions = append(versions, o.ResourceVersion)
				w := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 2})
				if len(events) == 0 {
					return w, nil
				}
				for _, e := range events[0] {
					w.Action(e.Type, e.Object)
				}
				events = events[1:]
				w.Stop()
				return w, nil
			},
		}, func(c controlplane.Change[*corev1.Pod]) {
			changes = append(changes, fmt.Sprintf("%s %s %s %t", c.Type, c.Object.Name, c.Object.ResourceVersion, c.Preexisting))
		})
		require.NoError(t, err)
		for range 5 {
			synctest.Wait()
			apitest.AdvanceClock(2 * time.Second)
		}
		stop()
		assert.Equal(t, []string{
			"ADDED a 1 true", "ADDED b 2 true", "ADDED d 3 true",
			"MODIFIED a 11 false",
			"DELETED b 20 false", "ADDED c 15 false", "MODIFIED d 16 false",
			"DELETED c 21 false", "ADDED c 22 false",
		}, changes)
		assert.Equal(t, []string{"10", "11", "20", "22"}, versions)
	})
}
