package trigger

import (
	"context"
	"errors"
	"fmt"
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

const testWorkers = 4

// workerLoad has workers take requests of some namespaces again and again, several at a time of each,
// as a queue does that always has some.
type workerLoad struct {
	latency map[string]time.Duration
	atOnce  int
	served  map[string]*atomic.Int32
}

func (l *workerLoad) run(ctx context.Context, isolate func(reconcile.Reconciler) reconcile.Reconciler) {
	r := isolate(reconcile.Func(func(_ context.Context, request ctrl.Request) (ctrl.Result, error) {
		held := l.latency[request.Namespace]
		time.Sleep(held + time.Millisecond)
		l.served[request.Namespace].Add(1)
		if held > 0 {
			return ctrl.Result{}, errHeldUp
		}
		return ctrl.Result{}, nil
	}))
	requests := make(chan ctrl.Request)
	var running sync.WaitGroup
	for range testWorkers {
		running.Go(func() {
			for request := range requests {
				_, _ = r.Reconcile(ctx, request)
			}
		})
	}
	for ctx.Err() == nil {
		for namespace := range l.latency {
			for range l.atOnce {
				requests <- ctrl.Request{NamespacedName: types.NamespacedName{Namespace: namespace}}
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	close(requests)
	running.Wait()
}

func newWorkerLoad(hostile int, latency time.Duration) *workerLoad {
	l := &workerLoad{latency: map[string]time.Duration{"honest": 0}, atOnce: testWorkers, served: map[string]*atomic.Int32{"honest": {}}}
	for i := range hostile {
		name := fmt.Sprint("hostile-", i)
		l.latency[name], l.served[name] = latency, &atomic.Int32{}
	}
	return l
}

func isolated(r reconcile.Reconciler) reconcile.Reconciler {
	return IsolateSlowNamespaces(r, testWorkers)
}

func TestSlowNamespacesLeaveWorkersToOthers(t *testing.T) {
	const period = 3 * time.Minute
	for hostile, wantServed := range map[int]int32{1: 2000, 4: 2000} {
		t.Run(fmt.Sprint(hostile), func(t *testing.T) {
			serve := func(isolate func(reconcile.Reconciler) reconcile.Reconciler) (honest int32) {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), period)
					defer cancel()
					l := newWorkerLoad(hostile, 30*time.Second)
					l.run(ctx, isolate)
					honest = l.served["honest"].Load()
				})
				return honest
			}
			assert.Greater(t, serve(isolated), wantServed)
			require.Less(t, serve(func(r reconcile.Reconciler) reconcile.Reconciler { return r }), int32(200), "this is what it is for")
		})
	}
}

// One that was held up once is served beside those that always are.
func TestSlowNamespacesHaveTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newWorkerLoad(4, 30*time.Second)
		s := IsolateSlowNamespaces(nil, testWorkers).(*slowNamespaces)
		s.byName["honest"] = &namespaceUse{slowUntil: time.Now().Add(time.Hour), released: make(chan struct{})}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		l.run(ctx, func(r reconcile.Reconciler) reconcile.Reconciler { s.Reconciler = r; return s })
		assert.Greater(t, l.served["honest"].Load(), int32(5))
		for name, served := range l.served {
			assert.Positive(t, served.Load(), name)
		}
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
		assert.True(t, s.byName["ns"].isSlow(time.Now()))
		assert.Zero(t, s.slowRunning)
		held = 0
		time.Sleep(slowPeriod)
		_, err := s.Reconcile(t.Context(), request)
		require.NoError(t, err)
		assert.Empty(t, s.byName)
	})
}
