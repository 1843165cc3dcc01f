package plan

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestPlannedState(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "this"}}
	prune := v1alpha1.PlannedPrune{Namespace: "lab", Name: "unused", ImageUID: "image", UID: "prune"}
	planFor := func(cluster types.UID) *v1alpha1.ClusterPlan {
		return &v1alpha1.ClusterPlan{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: v1alpha1.MailboxName},
			Spec: v1alpha1.ClusterPlanSpec{
				PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 2}, ClusterUID: cluster,
				Images:  []v1alpha1.PlannedImage{{Namespace: "lab", Name: "ubuntu"}},
				Kept:    []v1alpha1.KeptImage{{Namespace: "lab", Name: "kept"}},
				Retired: []v1alpha1.RetiredImage{{Namespace: "lab", Name: "old"}},
				Prunes:  []v1alpha1.PlannedPrune{prune},
			},
		}
	}
	newer := &v1alpha1.SyncLedger{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: v1alpha1.LedgerName},
		Status:     &v1alpha1.SyncLedgerStatus{Plan: &v1alpha1.PlanVersion{Epoch: 1, Sequence: 3}},
	}
	wanted := image.PlannedState{Keep: true, Wanted: true}
	keep, unknown := image.PlannedState{Keep: true}, image.PlannedState{Keep: true, Unknown: true}
	for _, tt := range []struct {
		name    string
		objects []client.Object
		image   string
		want    image.PlannedState
	}{
		{"no plan", nil, "ubuntu", image.PlannedState{}},
		{"a planned image", []client.Object{planFor("this")}, "ubuntu", wanted},
		{"a kept image", []client.Object{planFor("this")}, "kept", keep},
		{"a retired image", []client.Object{planFor("this")}, "old", image.PlannedState{DeleteAfter: ptr.To(time.Duration(0))}},
		{"a pruned image", []client.Object{planFor("this")}, "unused", image.PlannedState{Prune: &prune}},
		{"a pruned image of a refused plan", []client.Object{planFor("another")}, "unused", unknown},
		{"another image", []client.Object{planFor("this")}, "debian", image.PlannedState{}},
		{"a plan for another cluster", []client.Object{planFor("another")}, "old", unknown},
		{"an older plan than the acknowledged one", []client.Object{planFor("this"), newer}, "old", unknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(tt.objects, system)...).Build()
			r := &Reconciler{Client: live, Live: live, Cluster: apidiscovery.NewClusterIdentity(live), Namespace: "ot-agent"}
			got, err := r.PlannedState(t.Context(), types.NamespacedName{Namespace: "lab", Name: tt.image}, true)
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
		})
	}
	t.Run("a retry is begun only where its token is remembered", func(t *testing.T) {
		p := planFor("this")
		p.Spec.Images = []v1alpha1.PlannedImage{{Namespace: "lab", Name: "retried", Retry: "1"}}
		live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(p, system).Build()
		var fields []string
		r := &Reconciler{Client: live, Live: live, Cluster: apidiscovery.NewClusterIdentity(live), Namespace: "ot-agent", PlanFields: func() []string { return fields }}
		for _, want := range []string{"", "1", ""} {
			fields = nil
			if want != "" {
				fields = []string{v1alpha1.PlanFieldRetry}
			}
			got, err := r.PlannedState(t.Context(), types.NamespacedName{Namespace: "lab", Name: "retried"}, true)
			require.NoError(t, err)
			assert.Equal(t, image.PlannedState{Keep: true, Wanted: true, Retry: want}, got)
		}
	})
	t.Run("the kind is not served", func(t *testing.T) {
		got, err := (&Reconciler{}).PlannedState(t.Context(), types.NamespacedName{Namespace: "lab", Name: "ubuntu"}, false)
		require.NoError(t, err)
		assert.Equal(t, image.PlannedState{}, got)
	})
}

// The plan decides which of several images is published: one that goes back to a former version
// writes neither of their objects.
func TestPublishedImagesFollowThePlan(t *testing.T) {
	var objects []client.Object
	for _, name := range []string{"ubuntu-1", "ubuntu-2", "other"} {
		img := apitest.Image("lab/" + name).Obj()
		if name != "other" {
			img.Spec.Publish = &v1alpha1.Publish{DataSource: true, Name: "ubuntu"}
		}
		objects = append(objects, img)
	}
	b := newPlanFixture(t, objects...)
	b.storePlan(1, "this")
	assert.Equal(t, []string{"ubuntu-1", "ubuntu-2"}, b.enqueuedImages)
	b.mustReconcile()
	assert.Empty(t, b.enqueuedImages, "once per plan")
	b.storePlan(2, "this")
	assert.Equal(t, []string{"ubuntu-1", "ubuntu-2"}, b.enqueuedImages)
	require.NoError(t, b.Delete(t.Context(), &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: v1alpha1.MailboxName}}))
	b.mustReconcile()
	assert.Equal(t, []string{"ubuntu-1", "ubuntu-2"}, b.enqueuedImages, "the plan is deleted")
	b.mustReconcile()
	assert.Empty(t, b.enqueuedImages)
}
