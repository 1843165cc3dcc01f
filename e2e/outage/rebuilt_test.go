//go:build linux

package outage_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/scene"
	hubfleet "github.com/pelotech/ot-fleet/hub/fleet"
)

// A cluster that answers under another's name is not taken for it. What is known
// of the old one stays, marked, until a person says that the new one takes its
// place; and the same the other way round.
func TestClusterRebuiltUnderItsName(t *testing.T) {
	before, after := shared.sites[bergen], shared.sites[lab]
	if after.agent == nil {
		require.NoError(t, after.startAgent(t.Context()))
	}
	mailbox := metav1.ObjectMeta{Namespace: agent.Namespace, Name: v1alpha1.MailboxName}
	t.Cleanup(func() {
		for _, o := range []client.Object{&v1alpha1.ClusterPlan{ObjectMeta: mailbox}, &v1alpha1.TransferGrant{ObjectMeta: mailbox}} {
			require.NoError(t, client.IgnoreNotFound(after.Client().Delete(context.Background(), o)))
		}
	})
	before.image(t, "of-the-old")
	after.image(t, "of-the-new")
	shared.eventually(t, bergen, "healthy, with an image", healthy, hasBudget(2), hasImages(1))
	old, err := shared.hub.MemberImages(t.Context(), bergen, "")
	require.NoError(t, err)

	shared.leadTo(t, lab)
	t.Cleanup(func() { shared.leadTo(t, bergen) })
	m := shared.eventually(t, bergen, "another cluster",
		says(v1alpha1.ConditionIdentityConfirmed, metav1.ConditionFalse, v1alpha1.ReasonAnotherCluster,
			string(after.clusterUID(t)), string(before.clusterUID(t)), v1alpha1.AnnotationAcceptCluster),
		says(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonAnotherCluster),
		says(v1alpha1.ConditionReachable, metav1.ConditionTrue, v1alpha1.ReasonConnected), hasImages(1))
	assert.Equal(t, before.clusterUID(t), m.Status.ClusterUID)
	shared.awaitImage(t, "of-the-old", func(image hubfleet.ImageDetail) bool {
		return image.Unknown == 1 && len(image.In) == 1 && image.In[0].Unknown == v1alpha1.ReasonAnotherCluster
	})
	// What is planned meanwhile goes to the others.
	shared.setPolicy(t, "concurrency", "3")
	shared.eventually(t, near, "under the new policy", healthy, hasBudget(3))
	shared.eventually(t, bergen, "not told", says(v1alpha1.ConditionPolicyAcknowledged, metav1.ConditionFalse, v1alpha1.ReasonNotAcknowledged))
	for _, o := range []client.Object{&v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}} {
		err := after.Client().Get(t.Context(), client.ObjectKey{Namespace: agent.Namespace, Name: v1alpha1.MailboxName}, o)
		assert.True(t, apierrors.IsNotFound(err), "%T in a cluster that nobody accepted: %v", o, err)
	}
	still, err := shared.hub.MemberImages(t.Context(), bergen, "")
	require.NoError(t, err)
	assert.Equal(t, old, still, "nothing is merged")

	shared.accept(t, after.clusterUID(t))
	m = shared.eventually(t, bergen, "the new cluster, healthy", healthy, hasBudget(3), hasImages(1), func(m *v1alpha1.MemberCluster) bool {
		return m.Status.ClusterUID == after.clusterUID(t)
	})
	assert.True(t, says(v1alpha1.ConditionIdentityConfirmed, metav1.ConditionTrue, v1alpha1.ReasonSameCluster)(m), scene.Describe(m))
	shared.awaitImage(t, "of-the-new", func(image hubfleet.ImageDetail) bool { return image.Unknown == 0 && len(image.In) == 1 })
	shared.awaitImage(t, "of-the-old", func(image hubfleet.ImageDetail) bool { return len(image.In) == 0 })

	shared.leadTo(t, bergen)
	shared.eventually(t, bergen, "another cluster", says(v1alpha1.ConditionIdentityConfirmed, metav1.ConditionFalse, v1alpha1.ReasonAnotherCluster))
	shared.accept(t, before.clusterUID(t))
	shared.eventually(t, bergen, "the old cluster, healthy", healthy, hasBudget(3), hasImages(1), func(m *v1alpha1.MemberCluster) bool {
		return m.Status.ClusterUID == before.clusterUID(t)
	})
	shared.awaitImage(t, "of-the-new", func(image hubfleet.ImageDetail) bool { return len(image.In) == 0 })
}

// leadTo has the Secret of bergen lead to a cluster.
func (f *fleet) leadTo(t *testing.T, name string) {
	t.Helper()
	kubeconfig, _, err := f.way(context.Background(), name)
	require.NoError(t, err)
	require.NoError(t, f.lead(context.Background(), bergen, kubeconfig))
}

// accept says that bergen is a cluster.
func (f *fleet) accept(t *testing.T, uid types.UID) {
	t.Helper()
	m := f.member(t, bergen)
	base := m.DeepCopy()
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.AnnotationAcceptCluster, string(uid))
	require.NoError(t, f.Patch(t.Context(), m, client.MergeFrom(base)))
}
