//go:build linux

package prune_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// A hub that starts and cannot read yet what is to be pruned takes nothing of that out
// of the plans, which would undo it; all else it plans.
func TestHubDoesNotKnowYetWhatIsPruned(t *testing.T) {
	in := shared.sites[bergen]
	in.left(t, "known-a")
	r := shared.report(t, "known-", bergen)
	p := shared.pending(t, "known", r, time.Hour)
	shared.hub.Kill()
	<-shared.hub.Done()
	t.Cleanup(func() {
		if ended(shared.hub.Process) {
			require.NoError(t, shared.startHub(context.Background()))
		}
	})
	allow := shared.keepFromPages(t, r)
	require.NoError(t, shared.startHub(t.Context()))

	shared.rollOut(t, fleetImage("known-beside", bergen)) // planned and reported since
	plan := &v1alpha1.ClusterPlan{}
	require.NoError(t, shared.Get(t.Context(), mailbox(bergen), plan))
	require.Len(t, plan.Spec.Prunes, 1)
	assert.Equal(t, p.UID, plan.Spec.Prunes[0].UID)
	still := in.has(t, "known-a", v1alpha1.PhasePrunePending)
	assert.Equal(t, p.UID, still.Status.Prune.UID)

	allow()
	shared.undo(t, p)
	shared.ends(t, p, v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 1, Undone: 1})
	in.serves(t, "known-a")
}

// keepFromPages takes the right to read pages from the hub, until allow, or the end of
// the test.
func (f *fleet) keepFromPages(t *testing.T, r *v1alpha1.PruneReport) (allow func()) {
	t.Helper()
	cfg, err := f.plane.ServiceAccountConfig(t.Context(), hub.Namespace, "ot-hub")
	require.NoError(t, err)
	asHub, err := client.New(cfg, client.Options{Scheme: scheme})
	require.NoError(t, err)
	page := &f.pages(t, r)[0]
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "ot-hub"}}
	require.NoError(t, f.Get(t.Context(), keyOf(role), role))
	rules := role.Rules
	set := func(ctx context.Context, rules []rbacv1.PolicyRule) {
		require.NoError(t, f.Get(ctx, keyOf(role), role))
		role.Rules = rules
		require.NoError(t, f.Update(ctx, role))
	}
	set(t.Context(), slices.DeleteFunc(slices.Clone(rules), func(rule rbacv1.PolicyRule) bool { return slices.Contains(rule.Resources, "prunereportpages") }))
	allow = func() { set(context.Background(), rules) }
	t.Cleanup(allow)
	require.True(t, scene.Await(t, func() bool { return apierrors.IsForbidden(asHub.Get(t.Context(), keyOf(page), page)) }))
	return allow
}
