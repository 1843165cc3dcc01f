package plan

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestLastingConflictOfPlannedImageBacksOff: a webhook may deny with the code of a conflict, or somebody
// delete an image as often as it is created.
func TestLastingConflictOfPlannedImageBacksOff(t *testing.T) {
	resource := v1alpha1.GroupVersion.WithResource("vmdiskimages").GroupResource()
	for name, answer := range map[string]error{
		"denied as a conflict":           &apierrors.StatusError{ErrStatus: metav1.Status{Code: 409, Reason: metav1.StatusReasonConflict, Message: "admission webhook denied the request"}},
		"exists, and is deleted at once": apierrors.NewAlreadyExists(resource, "ubuntu"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: v1alpha1.MailboxName}}
				p.Spec = v1alpha1.ClusterPlanSpec{PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 1}, ClusterUID: "this", Images: []v1alpha1.PlannedImage{{Namespace: "lab", Name: "ubuntu"}}}
				b := newPlanFixture(t, p)
				writes, denies := 0, true
				b.Client = interceptor.NewClient(b.Client.(client.WithWatch), interceptor.Funcs{
					Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
						if writes++; denies {
							return answer
						}
						return c.Create(ctx, o, options...)
					},
				})
				limiter, end := trigger.NewRateLimiter(), time.Now().Add(10*time.Minute)
				for n := 0; time.Now().Before(end); n++ {
					result, err := b.Reconcile(t.Context(), ctrl.Request{})
					delay := result.RequeueAfter
					if n < 5 {
						require.NoError(t, err, "the next read may solve it")
						assert.Equal(t, trigger.ConflictRetryDelay<<n, delay)
					} else if err != nil {
						delay = limiter.When(b.request())
					}
					assert.Equal(t, v1alpha1.PlanItemWaiting, b.Results.Items()[plan.Key{Namespace: "lab", Name: "ubuntu"}].State)
					require.NoError(t, trigger.Sleep(t.Context(), max(delay, time.Millisecond)))
				}
				assert.Less(t, writes, 50)
				assert.Greater(t, writes, 15)

				denies = false
				require.NoError(t, trigger.Sleep(t.Context(), trigger.MaxRetryDelay))
				result, err := b.Reconcile(t.Context(), ctrl.Request{})
				require.NoError(t, err)
				assert.Zero(t, result.RequeueAfter)
				assert.Equal(t, v1alpha1.PlanItemApplied, b.Results.Items()[plan.Key{Namespace: "lab", Name: "ubuntu"}].State)
			})
		})
	}
}
