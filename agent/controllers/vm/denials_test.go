package vm

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// denyingCluster has one machine with a template. A webhook answers each creation of its image.
type denyingCluster struct {
	t *testing.T
	*Reconciler
	limited reconcile.Reconciler
	limiter *trigger.LatencyLimiter
	request ctrl.Request
	// answer of the webhook; nil accepts the image.
	answer                  func() error
	creations, statusWrites int
}

func newDenyingCluster(t *testing.T) *denyingCluster {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	require.NoError(t, corev1.AddToScheme(scheme))
	machine := apitest.VirtualMachine("ns", "vm").WithTemplate(apitest.Image("ns/golden").Obj().Spec).Obj()
	d := &denyingCluster{t: t, request: ctrl.Request{NamespacedName: client.ObjectKeyFromObject(machine)}, limiter: trigger.NewLatencyLimiter()}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(machine).WithStatusSubresource(machine).
		WithIndex(&v1alpha1.VirtualMachine{}, vm.AddressIndex, func(client.Object) []string { return nil }).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				d.creations++
				if err := d.answer(); err != nil {
					return err
				}
				return c.Create(ctx, o, opts...)
			},
			SubResourceUpdate: func(ctx context.Context, c client.Client, subresource string, o client.Object, opts ...client.SubResourceUpdateOption) error {
				d.statusWrites++
				return c.SubResource(subresource).Update(ctx, o, opts...)
			},
		}).Build()
	kinds := apidiscovery.NewKindTracker(meta.NewDefaultRESTMapper(nil))
	require.NoError(t, kinds.Start(t.Context()))
	d.Reconciler = &Reconciler{
		Client: c, Live: c, Owned: c, Events: events.NewFakeRecorder(1000), Kinds: kinds, Metrics: metrics.NewMachines(prometheus.NewRegistry()),
		ClusterUID: func(context.Context) (types.UID, error) { return "cluster", nil },
	}
	d.limited = d.limiter.Limit(d.Reconciler)
	return d
}

// reconcile returns when the machine is reconciled next, at once where its status was written.
func (d *denyingCluster) reconcile() (next time.Duration, err error) {
	writes := d.statusWrites
	result, err := d.limited.Reconcile(d.t.Context(), d.request)
	next = result.RequeueAfter
	if err != nil {
		next = d.limiter.When(d.request)
	} else {
		d.limiter.Forget(d.request)
	}
	if d.statusWrites > writes {
		next = 0
	}
	return next, err
}

func (d *denyingCluster) machine() *v1alpha1.VirtualMachine {
	machine := &v1alpha1.VirtualMachine{}
	require.NoError(d.t, d.Get(d.t.Context(), d.request.NamespacedName, machine))
	return machine
}

// newDenial is the answer to a request that a webhook denies in other words each time.
func newDenial(code int32) func() error {
	text := "denied the request: no"
	return func() error {
		text += " no"
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Message: `admission webhook "quota.example.org" ` + text}}
	}
}

// TestWebhookDenialCostsFewRequests denies for an hour, in other words each time.
func TestWebhookDenialCostsFewRequests(t *testing.T) {
	for name, tt := range map[string]struct {
		code int32
		// late is how long the webhook takes.
		late         time.Duration
		wantMax      int
		wantReason   v1alpha1.Reason
		wantMessages []string
	}{
		"403":       {403, 0, 260, v1alpha1.ReasonImageRefused, []string{"quota.example.org"}},
		"400, late": {400, 8 * time.Second, 25, v1alpha1.ReasonImageRefused, []string{"quota.example.org"}},
		"409":       {409, 0, 260, v1alpha1.ReasonRequestFailed, []string{"creating or updating the VMDiskImage failed", "quota.example.org"}},
		"409, late": {409, 8 * time.Second, 30, v1alpha1.ReasonRequestFailed, []string{"quota.example.org"}},
		"500":       {500, 0, 260, v1alpha1.ReasonRequestFailed, []string{"quota.example.org"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDenyingCluster(t)
				denial := newDenial(tt.code)
				d.answer = func() error {
					<-time.After(tt.late)
					return denial()
				}
				for began := time.Now(); time.Since(began) < time.Hour; {
					next, _ := d.reconcile()
					<-time.After(next)
					require.LessOrEqual(t, d.creations, tt.wantMax, "after %s", time.Since(began))
				}
				assert.Equal(t, tt.wantReason, d.machine().Status.Reason)
				for _, want := range tt.wantMessages {
					assert.Contains(t, d.machine().Status.Message, want)
				}
				d.answer = func() error { return nil }
				_, err := d.reconcile()
				require.NoError(t, err)
				assert.Zero(t, d.limiter.When(d.request).Truncate(time.Second), "nothing is left of it")
				assert.False(t, d.conflicts.IsExhausted(d.request))
			})
		})
	}
}

// TestFewConflictsAreRetriedSoon: the next read solves those of an object, once the watch has caught up.
func TestFewConflictsAreRetriedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDenyingCluster(t)
		stale := func() error { return fmt.Errorf("stale: %w", errObjectChanged) }
		for range 10 {
			for n, answer := range []func() error{newDenial(409), newDenial(409), newDenial(409), newDenial(409), newDenial(409), stale} {
				d.answer = answer
				next, err := d.reconcile()
				require.NoError(t, err)
				assert.Equal(t, trigger.ConflictRetryDelay<<(n%5), next)
				assert.Empty(t, d.machine().Status.Phase, "nothing is reported")
			}
			d.answer = func() error { return context.Canceled } // nor is this, which ends the row
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := d.Reconciler.Reconcile(ctx, d.request)
			require.ErrorIs(t, err, context.Canceled)
		}
	})
}
