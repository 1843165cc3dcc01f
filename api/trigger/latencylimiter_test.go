package trigger

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestLateFailuresAreRetriedLessOften(t *testing.T) {
	failure := errors.New("failed calling webhook")
	type step struct {
		took time.Duration
		err  error
		want time.Duration // at least; 0 for at once
	}
	for name, steps := range map[string][]step{
		"prompt failures":      {{0, failure, 0}, {0, failure, 0}},
		"the first late one":   {{30 * time.Second, failure, minLateDelay}},
		"a webhook that hangs": {{30 * time.Second, failure, 30 * time.Second}, {30 * time.Second, failure, time.Minute}, {30 * time.Second, failure, 2 * time.Minute}},
		"late, and no failure": {{30 * time.Second, nil, 0}},
		"it answers again":     {{30 * time.Second, failure, minLateDelay}, {0, failure, 0}, {30 * time.Second, failure, minLateDelay}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, request := NewLatencyLimiter(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "image"}}
				for _, s := range steps {
					r := l.Limit(reconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) {
						<-time.After(s.took)
						return ctrl.Result{}, s.err
					}))
					_, err := r.Reconcile(t.Context(), request)
					assert.Equal(t, s.err, err)
					delay := l.When(request)
					assert.GreaterOrEqual(t, delay, s.want)
					assert.Less(t, delay, s.want+time.Second)
				}
			})
		})
	}
}

// A webhook that denies late holds a worker as one that does not answer.
func TestLateRefusalsAreRetriedLessOften(t *testing.T) {
	const retryAfter = 30 * time.Second
	for name, steps := range map[string][]struct {
		took, want time.Duration
	}{
		"prompt": {{0, retryAfter}, {0, retryAfter}},
		"late":   {{8 * time.Second, 30 * time.Second}, {8 * time.Second, time.Minute}, {8 * time.Second, 2 * time.Minute}, {0, retryAfter}, {8 * time.Second, 30 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, request := NewLatencyLimiter(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "vm"}}
				for _, s := range steps {
					result, err := l.Limit(reconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) {
						<-time.After(s.took)
						return ctrl.Result{}, &Refusal{Err: errors.New("denied the request"), RetryAfter: retryAfter}
					})).Reconcile(t.Context(), request)
					require.NoError(t, err, "the status reports it")
					assert.Equal(t, s.want, result.RequeueAfter)
				}
			})
		})
	}
}

// Objects that hang leave most of a worker's time to others.
func TestLateFailuresTakeLittleTime(t *testing.T) {
	l, request := NewLatencyLimiter(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "image"}}
	var busy, elapsed time.Duration
	for elapsed < 10*time.Hour {
		l.record(request, errors.New("failed calling webhook"), 30*time.Second)
		busy, elapsed = busy+30*time.Second, elapsed+30*time.Second+l.When(request)
	}
	assert.Less(t, busy, elapsed/15)
}
