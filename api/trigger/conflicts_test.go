package trigger

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestConflictTracker(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "x", errors.New("changed"))
	denied := fmt.Errorf("creating: %w", &apierrors.StatusError{ErrStatus: metav1.Status{Code: 409, Message: "admission webhook denied the request"}})
	stale, other := errors.New("changed since it was read"), errors.New("connection refused")
	quota := apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "q", errors.New("changed"))
	exists := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "things"}, "x")
	five := []error{denied, denied, denied, denied, denied}
	for name, tt := range map[string]struct {
		answers []error
		want    bool
	}{
		"one":                           {[]error{conflict}, false},
		"five":                          {five, false},
		"six":                           {append(five[:5:5], conflict), true},
		"stale reads between":           {append(five[:5:5], stale, stale, denied), true},
		"a success between":             {append(five[:5:5], nil, denied), false},
		"another error between":         {append(five[:5:5], other, denied), false},
		"one that exists":               {[]error{exists, exists, exists, exists, exists, exists}, true},
		"over a quota":                  {[]error{quota, quota, quota, quota, quota, quota, quota}, false},
		"stale reads only":              {[]error{stale, stale, stale, stale, stale, stale, stale}, false},
		"again after one that lasted":   {append(five[:5:5], denied, denied), true},
		"a success after one that last": {append(five[:5:5], denied, nil, denied), false},
	} {
		t.Run(name, func(t *testing.T) {
			var tracker ConflictTracker
			request, another := ctrl.Request{NamespacedName: types.NamespacedName{Name: "a"}}, ctrl.Request{NamespacedName: types.NamespacedName{Name: "b"}}
			var lasts, expected bool
			for _, err := range tt.answers {
				expected = (IsObjectConflict(err) || apierrors.IsAlreadyExists(err)) && tracker.IsExhausted(request)
				lasts = tracker.Record(request, err, errors.Is(err, stale)) == 0
				assert.Equal(t, expected, lasts)
			}
			assert.Equal(t, tt.want, lasts)
			assert.Equal(t, ConflictRetryDelay, tracker.Record(another, denied, false), "each request has its own count")
			assert.Equal(t, 2*ConflictRetryDelay, tracker.Record(another, denied, false), "a watch may lag behind")
			tracker.Record(request, nil, false)
			tracker.Record(another, nil, false)
			assert.Empty(t, tracker.consecutive)
		})
	}
}

// A controller whose writes are preempted again and again ends with its backoff, and any other end of
// a reconcile begins anew.
func TestConflictsThatLastAreErrors(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "x", errors.New("changed"))
	exists := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "things"}, "x")
	other, done := errors.New("connection refused"), ctrl.Result{RequeueAfter: time.Minute}
	request := Requests("a")[0]
	for name, preempted := range map[string]error{"a conflict": conflict, "it exists": fmt.Errorf("creating: %w", exists)} {
		t.Run(name, func(t *testing.T) {
			var tracker ConflictTracker
			for _, end := range []error{nil, other, nil} {
				for n := range maxConflicts {
					result, err := tracker.Result(t.Context(), request, done, preempted)
					require.NoError(t, err)
					assert.Equal(t, ctrl.Result{RequeueAfter: ConflictRetryDelay << n}, result)
				}
				for range 3 {
					_, err := tracker.Result(t.Context(), request, done, preempted)
					require.ErrorIs(t, err, preempted)
				}
				result, err := tracker.Result(t.Context(), request, done, end)
				assert.Equal(t, end, err)
				if end == nil {
					assert.Equal(t, done, result)
				}
				assert.Empty(t, tracker.consecutive)
			}
		})
	}
}

// What does not exist is retried at once, once: a namespace or kind may be missing. It counts as no
// conflict, or the first real one after it would be said to last.
func TestMissingObjectsAreNoConflicts(t *testing.T) {
	gone := fmt.Errorf("creating: %w", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "x"))
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "x", errors.New("changed"))
	request := Requests("a")[0]
	var tracker ConflictTracker
	for range 2 {
		result, err := tracker.Result(t.Context(), request, ctrl.Result{}, gone)
		require.NoError(t, err, "another writer has deleted it")
		assert.Equal(t, ctrl.Result{RequeueAfter: ConflictRetryDelay}, result)
		for range 2 * maxConflicts {
			_, err := tracker.Result(t.Context(), request, ctrl.Result{}, gone)
			require.ErrorIs(t, err, gone)
		}
		assert.False(t, tracker.IsExhausted(request))
		result, err = tracker.Result(t.Context(), request, ctrl.Result{}, conflict)
		require.NoError(t, err)
		assert.Equal(t, ctrl.Result{RequeueAfter: ConflictRetryDelay}, result)
	}
	_, err := tracker.Result(t.Context(), request, ctrl.Result{}, gone)
	require.NoError(t, err)
	tracker.Forget(request)
	assert.Empty(t, tracker.gone)
	assert.Empty(t, tracker.consecutive)
}

func TestEndConflicts(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "x", errors.New("changed"))
	r := EndConflicts(reconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) { return ctrl.Result{}, conflict }))
	for n := range maxConflicts + 1 {
		_, err := r.Reconcile(t.Context(), Requests("a")[0])
		assert.Equal(t, n == maxConflicts, err != nil)
	}
}

func TestConflictsEndWithTheirObject(t *testing.T) {
	throttle, conflict := newTestThrottle(), apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "x", errors.New("changed"))
	_, err := throttle.Reconcile(t.Context(), "a", func(context.Context, string) (time.Duration, error) { return 0, conflict })
	require.NoError(t, err)
	require.Len(t, throttle.conflicts.consecutive, 1)
	throttle.Forget("a")
	assert.Empty(t, throttle.conflicts.consecutive)
}

// A reconcile that the throttle puts off has not written, so it ends no row of conflicts.
func TestThrottledReconcilesEndNoRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle, conflict := newTestThrottle(), apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "x", errors.New("changed"))
		reconcile := func(context.Context, string) (time.Duration, error) { return 0, conflict }
		for n := range maxConflicts + 1 {
			result, err := throttle.Reconcile(t.Context(), "a", reconcile)
			assert.Equal(t, n == maxConflicts, err != nil, "conflict %d", n)
			assert.Equal(t, n < maxConflicts, result.RequeueAfter > 0)
			result, err = throttle.Reconcile(t.Context(), "a", reconcile)
			require.NoError(t, err)
			assert.Equal(t, testInterval, result.RequeueAfter)
			require.NoError(t, Sleep(t.Context(), testInterval))
		}
	})
}
