package planner

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/grant"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
	"github.com/pelotech/ot-fleet/hub/plan"
)

// A plan is written before the status that names it: a hub that dies in between knows of the plan
// by the plan only, and does not leave it in the member.
func TestPlanThatNoStatusNamesIsCleanedUp(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "frankfurt", UID: uid}}
	at := metav1.ObjectMeta{Namespace: v1alpha1.MemberNamespacePrefix + member.Name, Name: v1alpha1.MailboxName}
	for name, tt := range map[string]struct {
		stored   []client.Object
		hadPlan  bool
		wantDone bool
	}{
		"it never had a plan":           {[]client.Object{&v1alpha1.MemberLink{ObjectMeta: at}}, false, true},
		"a plan without a status":       {[]client.Object{&v1alpha1.MemberLink{ObjectMeta: at}}, true, false},
		"a plan that nobody syncs":      {nil, true, false},
		"another process has asked for": {[]client.Object{&v1alpha1.MemberLink{ObjectMeta: at, Spec: v1alpha1.MemberLinkSpec{Leaving: true}}}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(tt.stored...).Build()
			r := &Reconciler{Client: c, Live: c, Links: &shard.Links{Cached: c}, cleanUpDeadlines: map[string]cleanUpDeadline{}}
			r.ensureCleanUp(member, time.Now(), tt.hadPlan) // then the plan is deleted on the hub
			state, err := r.requestCleanUp(t.Context(), member)
			require.NoError(t, err)
			assert.Equal(t, tt.wantDone, state.done)
			if link, _ := r.Links.Get(t.Context(), member.Name); link != nil {
				assert.Equal(t, !tt.wantDone, link.Spec.Leaving)
			}
		})
	}
}

// Otherwise the report in the namespace is taken for that of a MemberCluster that is created again.
func TestFinalizerStaysUntilTheCacheShowsTheDeletion(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "frankfurt", UID: uid}}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: v1alpha1.MemberNamespacePrefix + member.Name, UID: "ns", Labels: map[string]string{v1alpha1.LabelMember: member.Name},
	}}
	stored := fake.NewClientBuilder().WithScheme(scheme).WithObjects(ns).Build()
	lagging := true
	// A cache that does not show yet what was written.
	c := interceptor.NewClient(stored, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
		if shown, isNamespace := o.(*corev1.Namespace); isNamespace && lagging {
			ns.DeepCopyInto(shown)
			return nil
		}
		return c.Get(ctx, key, o, options...)
	}})
	r := &Reconciler{Client: c, Live: stored}
	for range 2 {
		deleting, err := r.deleteNamespace(t.Context(), member, ns)
		require.NoError(t, err)
		require.False(t, deleting)
		require.True(t, apierrors.IsNotFound(stored.Get(t.Context(), client.ObjectKeyFromObject(ns), &corev1.Namespace{})), "it is deleted, but the cache does not show it")
	}
	lagging = false
	deleting, err := r.deleteNamespace(t.Context(), member, ns)
	require.NoError(t, err)
	require.True(t, deleting)
}

// Whoever removed the finalizer.
func TestGoneMemberIsForgotten(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	c := fake.NewClientBuilder().WithScheme(scheme).Build()
	r := &Reconciler{Client: c, Shares: &grant.Shares{}, Raises: &plan.Raises{}}
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "frankfurt", UID: uid}}
	r.ensureCleanUp(member, time.Now(), true)
	_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(member)})
	require.NoError(t, err)
	assert.Empty(t, r.cleanUpDeadlines)
}
