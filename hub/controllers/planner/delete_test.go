package planner

import (
	"testing"
	"time"

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
