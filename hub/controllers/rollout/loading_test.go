package rollout

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A plan that is deleted, or replaced, after it was listed and before the cache has listed plans, is
// never seen to go.
func TestPlansThatNoCacheShowsAreNotAwaited(t *testing.T) {
	newPlan := func(uid types.UID) *v1alpha1.ClusterPlan {
		return &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.MemberNamespacePrefix + "bergen", Name: v1alpha1.MailboxName, UID: uid, Generation: 1,
		}}
	}
	for name, tt := range map[string]struct {
		stored, shown *v1alpha1.ClusterPlan
		wantReady     bool
	}{
		"deleted":                            {wantReady: true},
		"replaced":                           {stored: newPlan("second"), shown: newPlan("second"), wantReady: true},
		"replaced, which is not shown":       {stored: newPlan("second")},
		"stored, and not shown":              {stored: newPlan("first")},
		"stored, and another is shown":       {stored: newPlan("first"), shown: newPlan("second")},
		"replaced, as the cache shows later": {stored: newPlan("second"), shown: newPlan("first"), wantReady: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := NewFleetState(func() bool { return true })
				live := fake.NewClientBuilder().WithScheme(hubclient.Scheme).WithObjects(newPlan("first")).Build()
				done := make(chan struct{})
				go func() {
					assert.NoError(t, (&storedPlansLoader{live: live, state: f}).Start(t.Context()))
					close(done)
				}()
				synctest.Wait()
				require.NoError(t, live.Delete(t.Context(), newPlan("first")))
				if tt.stored != nil {
					require.NoError(t, live.Create(t.Context(), tt.stored.DeepCopy()))
				}
				require.NoError(t, trigger.Sleep(t.Context(), 3*listRetryDelay))
				assert.True(t, f.isAwaitingPlans(), "the cache is not synced")
				if tt.shown != nil {
					f.SetPlan("bergen", tt.shown)
				}
				f.MarkSynced()
				require.NoError(t, trigger.Sleep(t.Context(), 3*listRetryDelay))
				assert.Equal(t, tt.wantReady, f.Ready())
				if tt.wantReady {
					<-done
				}
			})
		})
	}
}
