package planner

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
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
		wantDone bool
	}{
		"it never had a plan":      {[]client.Object{&v1alpha1.MemberLink{ObjectMeta: at}}, true},
		"a plan without a status":  {[]client.Object{&v1alpha1.MemberLink{ObjectMeta: at}, &v1alpha1.ClusterPlan{ObjectMeta: at}}, false},
		"a plan that nobody syncs": {[]client.Object{&v1alpha1.ClusterPlan{ObjectMeta: at}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(tt.stored...).Build()
			r := &Reconciler{Client: c, Live: c, Links: &shard.Links{Cached: c}, cleanUpDeadlines: map[string]cleanUpDeadline{}}
			state, err := r.requestCleanUp(t.Context(), member)
			require.NoError(t, err)
			assert.Equal(t, tt.wantDone, state.done)
			if link, _ := r.Links.Get(t.Context(), member.Name); link != nil {
				assert.Equal(t, !tt.wantDone, link.Spec.Leaving)
			}
		})
	}
}
