package plan

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Prunes begin only under a plan that repeats what this process has asked with, whatever cache shows it.
func TestPrunesAreConfirmedByNonce(t *testing.T) {
	own, other, none := "boot/1", "former/1", ""
	for name, tt := range map[string]struct {
		confirmed       *string
		elapsed         time.Duration
		wantUnconfirmed bool
	}{
		"of an older hub":    {nil, 0, false},
		"nothing":            {&none, 0, true},
		"of another process": {&other, 0, true},
		"of this process":    {&own, image.PruneNonceLife - 1, false},
		"for too long":       {&own, image.PruneNonceLife, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newPlanFixture(t, apitest.Image("lab/a").Obj())
			var elapsed time.Duration
			reports := 0
			b.Nonces, b.Elapsed, b.EnqueueReport = plan.NewPruneNonces("boot"), func() time.Duration { return elapsed }, func() { reports++ }
			b.served.Store(true)
			b.storePlan(1, "this", "a")
			b.AskPrunesConfirmed()
			b.AskPrunesConfirmed()
			assert.Equal(t, 1, reports, "one nonce for all prunes")
			assert.Equal(t, own, b.Nonces.NonceForReport(elapsed))
			p := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: v1alpha1.MailboxName}}
			require.NoError(t, b.Get(t.Context(), types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, p))
			p.Spec.Sequence, p.Spec.ConfirmedNonce = 2, tt.confirmed
			require.NoError(t, b.Update(t.Context(), p))
			b.mustReconcile()
			assert.Equal(t, []string{"a"}, b.enqueuedImages, "the answer requeues the images")

			elapsed = tt.elapsed
			for _, live := range []bool{false, true} {
				state, err := b.PlannedState(t.Context(), types.NamespacedName{Namespace: "lab", Name: "a"}, live)
				require.NoError(t, err)
				require.NotNil(t, state.Prune)
				assert.Equal(t, tt.wantUnconfirmed, state.PruneUnconfirmed, "live %t", live)
			}
		})
	}
}
