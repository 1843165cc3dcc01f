package trigger

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

var errHeldUp = errors.New("failed calling webhook")

// runWorkers has workers take requests in turn until all others but those of hostile namespaces were
// reconciled, and returns how long that took.
func runWorkers(t *testing.T, isolate func(reconcile.Reconciler) reconcile.Reconciler, workers int, latency map[string]time.Duration, honest int) time.Duration {
	t.Helper()
	began := time.Now()
	requests := make(chan ctrl.Request)
	var done atomic.Int32
	var running sync.WaitGroup
	r := isolate(reconcile.Func(func(_ context.Context, request ctrl.Request) (ctrl.Result, error) {
		if held, isHostile := latency[request.Namespace]; isHostile {
			time.Sleep(held)
			return ctrl.Result{}, errHeldUp
		}
		return ctrl.Result{}, nil
	}))
	for range workers {
		running.Go(func() {
			for request := range requests {
				result, _ := r.Reconcile(t.Context(), request)
				if request.Namespace == "honest" && result.IsZero() {
					done.Add(1)
				}
			}
		})
	}
	for int(done.Load()) < honest {
		for namespace := range latency {
			requests <- ctrl.Request{NamespacedName: types.NamespacedName{Namespace: namespace}}
		}
		requests <- ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "honest"}}
	}
	took := time.Since(began)
	close(requests)
	running.Wait()
	return took
}

func TestSlowNamespacesLeaveWorkersToOthers(t *testing.T) {
	latency := map[string]time.Duration{"a": 30 * time.Second, "b": 30 * time.Second, "c": 30 * time.Second, "d": 30 * time.Second}
	isolated := func(r reconcile.Reconciler) reconcile.Reconciler { return IsolateSlowNamespaces(r, 4) }
	plain := func(r reconcile.Reconciler) reconcile.Reconciler { return r }
	synctest.Test(t, func(t *testing.T) {
		assert.Less(t, runWorkers(t, isolated, 4, latency, 100), 2*time.Minute, "each is slow once")
	})
	synctest.Test(t, func(t *testing.T) {
		require.Greater(t, runWorkers(t, plain, 4, latency, 100), 10*time.Minute, "this is what it is for")
	})
}

func TestSlowNamespaceRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := slowReconcile
		s := IsolateSlowNamespaces(reconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) {
			time.Sleep(held)
			return ctrl.Result{}, nil
		}), 1).(*slowNamespaces)
		request := ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "ns"}}
		for range 2 {
			result, err := s.Reconcile(t.Context(), request)
			require.NoError(t, err)
			assert.Zero(t, result, "one worker is always left to them")
		}
		assert.Len(t, s.slow, 1)
		assert.Zero(t, s.running)
		held = 0
		time.Sleep(slowPeriod)
		_, err := s.Reconcile(t.Context(), request)
		require.NoError(t, err)
		assert.Empty(t, s.slow)
	})
}
