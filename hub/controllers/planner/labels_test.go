package planner

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A ConfigMap that is refused, by a quota or as immutable, does not keep a member from leaving.
func TestRefusedConfigMapDelaysRemovalOnly(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "frankfurt", UID: uid, Labels: map[string]string{"edge": "true"}}}
	resource := schema.GroupResource{Resource: "configmaps"}
	for name, tt := range map[string]struct {
		refusal   error
		wantGoOn  bool
		wantEvent bool
	}{
		"written":  {nil, true, false},
		"refused":  {apierrors.NewForbidden(resource, "ot-hub-labels", errors.New("exceeded quota")), true, true},
		"conflict": {apierrors.NewConflict(resource, "ot-hub-labels", errors.New("it has changed")), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(member.DeepCopy()).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					if tt.refusal != nil {
						return tt.refusal
					}
					return c.Create(ctx, o, opts...)
				},
			}).Build()
			recorder := events.NewFakeRecorder(10)
			r := &Reconciler{Client: c, Live: c, Events: recorder, Namespace: "ot-hub"}
			require.ErrorIs(t, r.rememberLabels(t.Context(), member), tt.refusal, "it is tried again first")
			assert.Empty(t, recorder.Events)
			r.cleanUpDeadlines = map[string]cleanUpDeadline{member.Name: {memberUID: member.UID, until: time.Now().Add(-time.Second)}}
			err := r.rememberLabels(t.Context(), member)
			assert.Equal(t, tt.wantGoOn, err == nil, "%v", err)
			if tt.wantEvent {
				require.Len(t, recorder.Events, 1)
				event := <-recorder.Events
				assert.Contains(t, event, "edge=true")
				assert.Contains(t, event, "exceeded quota")
			}
			assert.Empty(t, recorder.Events)
		})
	}
}

// A Cluster that takes the name of a departed member does not erase its labels.
func TestOtherClusterLeavesLabelsStored(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
	left := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "frankfurt", UID: uid, Labels: map[string]string{"edge": "true"}}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(left).Build()
	r := &Reconciler{Client: c, Live: c, Events: events.NewFakeRecorder(10), Namespace: "ot-hub"}
	require.NoError(t, r.rememberLabels(t.Context(), left))
	joins := func(connection v1alpha1.MemberConnection) map[string]string {
		member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "frankfurt"}, Spec: v1alpha1.MemberClusterSpec{Connection: connection}}
		restored, err := r.restoreLabels(t.Context(), member)
		require.NoError(t, err)
		r.confirmRestored(t.Context(), member, restored)
		return restored
	}
	assert.Empty(t, joins(v1alpha1.MemberConnection{ClusterAPI: &v1alpha1.ClusterAPIRef{Namespace: "team-b", Name: "frankfurt"}}))
	assert.Equal(t, map[string]string{"edge": "true"}, joins(v1alpha1.MemberConnection{Pull: &v1alpha1.MemberPull{}}))
	assert.Empty(t, joins(v1alpha1.MemberConnection{Pull: &v1alpha1.MemberPull{}}), "what was given back is forgotten")
}

// Whether labels have expired is a matter of the API server's clock: that of a hub may be months
// ahead.
func TestLabelsOutliveTheHubsClock(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
	longAgo := metav1.NewTime(time.Now().Add(-90 * 24 * time.Hour).Truncate(time.Second)) // by the hub's clock
	leaving := func(name string) *v1alpha1.MemberCluster {
		return &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: uid, Labels: map[string]string{"edge": "true"}, DeletionTimestamp: &longAgo, Finalizers: []string{v1alpha1.FinalizerMember},
		}}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(leaving("frankfurt"), leaving("bergen")).Build()
	r := &Reconciler{Client: c, Live: c, Events: events.NewFakeRecorder(10), Namespace: "ot-hub"}
	require.NoError(t, r.rememberLabels(t.Context(), leaving("frankfurt")))
	require.NoError(t, r.rememberLabels(t.Context(), leaving("bergen")))
	for name, tt := range map[string]struct {
		createdAt time.Time
		want      map[string]string
	}{
		"frankfurt": {longAgo.Add(time.Hour), map[string]string{"edge": "true"}},
		"bergen":    {longAgo.Add(31 * 24 * time.Hour), nil},
	} {
		member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(tt.createdAt)}}
		restored, err := r.restoreLabels(t.Context(), member)
		require.NoError(t, err)
		assert.Equal(t, tt.want, restored, name)
		r.confirmRestored(t.Context(), member, restored)
	}
	store, err := r.getLabelStore(t.Context())
	require.NoError(t, err)
	assert.Contains(t, store.Data, "bergen", "only what was given back is forgotten")
	assert.NotContains(t, store.Data, "frankfurt")
}
