package apidiscovery

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// unsyncedCache has an informer that never syncs. Waiting for the sync blocks until the test
// ends.
type unsyncedCache struct{ informertest.FakeInformers }

func (c *unsyncedCache) GetInformer(ctx context.Context, obj client.Object, opts ...cache.InformerGetOption) (cache.Informer, error) {
	var o cache.InformerGetOptions
	for _, opt := range opts {
		opt(&o)
	}
	if o.BlockUntilSynced == nil || *o.BlockUntilSynced {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c.FakeInformers.GetInformer(ctx, obj)
}

// A deletion right after Watch has returned is reported. Otherwise an image whose snapshot is
// deleted then would never be torn down further.
func TestWatchMissesNoDeletion(t *testing.T) {
	reconciled := make(chan types.NamespacedName, 2)
	c, err := controller.NewUnmanaged(t.Name(), controller.Options{
		SkipNameValidation: ptr.To(true), // for -count
		Reconciler: reconcile.Func(func(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
			reconciled <- req.NamespacedName
			return reconcile.Result{}, nil
		}),
	})
	require.NoError(t, err)
	wantReconciled := func(name types.NamespacedName) {
		t.Helper()
		select {
		case got := <-reconciled:
			require.Equal(t, name, got)
		case <-time.After(time.Minute):
			require.Fail(t, "the controller got no request for", name.String())
		}
	}
	running := types.NamespacedName{Name: "running"}
	require.NoError(t, c.Watch(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		q.Add(reconcile.Request{NamespacedName: running})
		return nil
	})))
	go func() { _ = c.Start(t.Context()) }()
	wantReconciled(running)

	gone := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "gone"}}
	informers := &unsyncedCache{}
	require.NoError(t, Watch(t.Context(), c, informers, gone, &handler.EnqueueRequestForObject{}))
	informer, err := informers.FakeInformerFor(t.Context(), gone)
	require.NoError(t, err)
	informer.Delete(gone)
	wantReconciled(client.ObjectKeyFromObject(gone))
}
