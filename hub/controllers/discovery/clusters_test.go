package discovery

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberlabels"
)

func newAPI(t *testing.T, stored ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme), clusterv1.AddToScheme(scheme)))
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(stored...).WithIndex(newSecretMetadata(), memberIndexField, indexedMember).Build()
}

func newClusterReconciler(t *testing.T, api client.Client) *clusterReconciler {
	t.Helper()
	selector, err := labels.Parse("fleet=ot")
	require.NoError(t, err)
	return &clusterReconciler{
		Options: Options{Clusters: selector, Rules: Rules{Namespaces: []string{"team"}, OwnNames: []string{"team"}}},
		client:  api, live: api, events: events.NewFakeRecorder(100),
	}
}

func newCluster(uid types.UID, createdAt time.Time) *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "edge", UID: uid, Labels: map[string]string{"fleet": "ot"}, CreationTimestamp: metav1.NewTime(createdAt),
	}}
}

// newDiscovered returns the member of Cluster team/edge, with a label of a person.
func newDiscovered(quarantine *v1alpha1.MemberQuarantine) *v1alpha1.MemberCluster {
	return &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{
			Name: "edge", UID: "former-member", CreationTimestamp: metav1.NewTime(apitest.Epoch),
			Labels:      map[string]string{v1alpha1.LabelDiscovered: originCluster, "site": "prod"},
			Annotations: map[string]string{memberlabels.AnnotationClusterUID: "former"},
		},
		Spec:   v1alpha1.MemberClusterSpec{Connection: v1alpha1.MemberConnection{ClusterAPI: &v1alpha1.ClusterAPIRef{Namespace: "team", Name: "edge"}}, Quarantine: quarantine},
		Status: v1alpha1.MemberClusterStatus{ClusterUID: "kube-system-of-former"},
	}
}

func reconcileTwice(t *testing.T, c *clusterReconciler) *v1alpha1.MemberCluster {
	t.Helper()
	for range 2 {
		_, err := c.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: "edge"}})
		require.NoError(t, err)
	}
	member := &v1alpha1.MemberCluster{}
	if err := c.client.Get(t.Context(), client.ObjectKey{Name: "edge"}, member); err != nil {
		require.NoError(t, client.IgnoreNotFound(err))
		return nil
	}
	return member
}

// Who may delete and create a Cluster, or label it, neither inherits labels nor ends a
// quarantine.
func TestClusterCreatedAgain(t *testing.T) {
	quarantine := &v1alpha1.MemberQuarantine{Reason: "reports 256 imports"}
	for name, tt := range map[string]struct {
		cluster      *clusterv1.Cluster
		quarantine   *v1alpha1.MemberQuarantine
		neverSeen    bool   // the member has not reported since it was created
		wantRecorded string // in the member; empty: there is none
		wantSite     string
	}{
		"the same":                     {newCluster("former", apitest.Epoch), nil, false, "former", "prod"},
		"created again":                {newCluster("next", apitest.Epoch.Add(time.Hour)), nil, false, "next", ""},
		"restored before its member":   {newCluster("next", apitest.Epoch.Add(-time.Hour)), nil, false, "next", "prod"},
		"restored after its member":    {newCluster("next", apitest.Epoch.Add(time.Hour)), nil, true, "next", "prod"},
		"restored in the same second":  {newCluster("next", apitest.Epoch), nil, false, "next", "prod"},
		"gone":                         {nil, nil, false, "", ""},
		"created again, in quarantine": {newCluster("next", apitest.Epoch.Add(time.Hour)), quarantine, false, "former", "prod"},
		"gone, in quarantine":          {nil, quarantine, false, "former", "prod"},
	} {
		t.Run(name, func(t *testing.T) {
			member := newDiscovered(tt.quarantine)
			if tt.neverSeen {
				member.Status = v1alpha1.MemberClusterStatus{}
			}
			api := newAPI(t, member)
			if tt.cluster != nil {
				require.NoError(t, api.Create(t.Context(), tt.cluster))
			}
			member = reconcileTwice(t, newClusterReconciler(t, api))
			if tt.wantRecorded == "" {
				assert.Nil(t, member)
				return
			}
			require.NotNil(t, member)
			assert.Equal(t, tt.wantRecorded, member.Annotations[memberlabels.AnnotationClusterUID])
			assert.Equal(t, tt.wantSite, member.Labels["site"])
			assert.Equal(t, tt.quarantine, member.Spec.Quarantine)
		})
	}
}

// A quarantine that the cache does not have yet counts.
func TestQuarantineIsReadLive(t *testing.T) {
	api := newAPI(t, newDiscovered(&v1alpha1.MemberQuarantine{Reason: "now"}))
	c := newClusterReconciler(t, interceptor.NewClient(api, interceptor.Funcs{
		List: func(ctx context.Context, from client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			err := from.List(ctx, list, options...)
			if members, ok := list.(*v1alpha1.MemberClusterList); ok {
				for i := range members.Items {
					members.Items[i].Spec.Quarantine = nil
				}
			}
			return err
		},
	}))
	assert.NotNil(t, reconcileTwice(t, c))
}

func TestSecretOfQuarantinedMemberIsGone(t *testing.T) {
	for name, tt := range map[string]struct {
		quarantine *v1alpha1.MemberQuarantine
		wantKept   bool
	}{
		"deleted with its Secret": {nil, false},
		"kept in quarantine":      {&v1alpha1.MemberQuarantine{Reason: "lies"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			member := newDiscovered(tt.quarantine)
			member.Labels[v1alpha1.LabelDiscovered] = originSecret
			member.Spec.Connection = v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "edge", Key: "kubeconfig"}}
			api := newAPI(t, member)
			s := &secretReconciler{client: api, live: api, events: events.NewFakeRecorder(100), missingSince: map[string]time.Time{"edge": apitest.Epoch}}
			s.Namespace = "ot-hub"
			_, err := s.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "edge"}})
			require.NoError(t, err)
			err = api.Get(t.Context(), client.ObjectKey{Name: "edge"}, &v1alpha1.MemberCluster{})
			assert.Equal(t, tt.wantKept, err == nil, "%v", err)
		})
	}
}

func TestStatusOfMemberReadsNoCluster(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*v1alpha1.MemberCluster)
		want   bool
	}{
		"status":     {func(m *v1alpha1.MemberCluster) { m.Status.ClusterUID, m.ResourceVersion = "uid", "2" }, false},
		"spec":       {func(m *v1alpha1.MemberCluster) { m.Spec.Quarantine, m.Generation = nil, 2 }, true},
		"label":      {func(m *v1alpha1.MemberCluster) { m.Labels["site"] = "test" }, true},
		"annotation": {func(m *v1alpha1.MemberCluster) { m.Annotations = nil }, true},
		"deletion":   {func(m *v1alpha1.MemberCluster) { m.DeletionTimestamp = &metav1.Time{Time: apitest.Epoch} }, true},
		"another":    {func(m *v1alpha1.MemberCluster) { m.UID = "another" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			before := newDiscovered(&v1alpha1.MemberQuarantine{Reason: "lies"})
			after := before.DeepCopy()
			tt.change(after)
			assert.Equal(t, tt.want, exceptStatus.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}))
		})
	}
	assert.True(t, exceptStatus.Create(event.CreateEvent{}))
	assert.True(t, exceptStatus.Delete(event.DeleteEvent{}))
}
