package plan

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// confirmNonce stores a later plan with that nonce.
func (b *planFixture) confirmNonce(nonce *string) {
	p := &v1alpha1.ClusterPlan{}
	require.NoError(b.t, b.Get(b.t.Context(), types.NamespacedName{Namespace: "ot-agent", Name: v1alpha1.MailboxName}, p))
	p.Spec.Sequence, p.Spec.ConfirmedNonce = p.Spec.Sequence+1, nonce
	require.NoError(b.t, b.Update(b.t.Context(), p))
	b.mustReconcile()
}

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
			b.confirmNonce(tt.confirmed)
			assert.Equal(t, []string{"a"}, b.enqueuedImages, "the answer requeues the images")

			elapsed = tt.elapsed
			for _, live := range []bool{false, true} {
				state, err := b.PlannedState(t.Context(), types.NamespacedName{Namespace: "lab", Name: "a"}, live)
				require.NoError(t, err)
				require.NotNil(t, state.Prune)
				assert.Equal(t, tt.wantUnconfirmed, state.PruneUnconfirmed, "live %t", live)
				assert.False(t, state.PruneAnswersLate)
			}
		})
	}
}

// A hub whose answers take longer than a nonce lives, or do not come, is said to.
func TestLateAnswersAreNoticed(t *testing.T) {
	b := newPlanFixture(t, apitest.Image("lab/a").Obj())
	var elapsed time.Duration
	b.Nonces, b.Elapsed, b.EnqueueReport = plan.NewPruneNonces("boot"), func() time.Duration { return elapsed }, func() {}
	b.served.Store(true)
	b.storePlan(1, "this", "a")
	b.confirmNonce(ptr.To("boot/0"))
	var late []bool
	for range 6 {
		state, err := b.PlannedState(t.Context(), types.NamespacedName{Namespace: "lab", Name: "a"}, false)
		require.NoError(t, err)
		require.True(t, state.PruneUnconfirmed)
		late = append(late, state.PruneAnswersLate)
		b.AskPrunesConfirmed()
		b.Nonces.NonceForReport(elapsed)
		elapsed += image.PruneNonceLife / 2
	}
	assert.Equal(t, []bool{false, false, false, false, true, true}, late)
}
