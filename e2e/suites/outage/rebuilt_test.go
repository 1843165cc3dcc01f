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

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestClusterRebuiltUnderSameName shows that the hub does not confuse a rebuilt cluster
// with the old one: the old state stays, marked, until a person confirms the replacement.
// The same holds in the other direction.
func TestClusterRebuiltUnderSameName(t *testing.T) {
	before, after := shared.Members[bergen], shared.Members[lab]
	if after.Agent == nil {
		require.NoError(t, after.StartAgent(t.Context()))
	}
	mailbox := metav1.ObjectMeta{Namespace: program.AgentNamespace, Name: v1alpha1.MailboxName}
	t.Cleanup(func() {
		for _, o := range []client.Object{&v1alpha1.ClusterPlan{ObjectMeta: mailbox}, &v1alpha1.TransferGrant{ObjectMeta: mailbox}} {
			require.NoError(t, client.IgnoreNotFound(after.Client().Delete(context.Background(), o)))
		}
	})
	before.CreateImageForTest(t, "of-the-old")
	after.CreateImageForTest(t, "of-the-new")
	shared.AwaitMember(t, bergen, "healthy, with an image", isHealthy, hasBudget(2), hasImages(1))
	old, err := shared.Hub.GetMemberImages(t.Context(), bergen, "")
	require.NoError(t, err)
	// A cluster without a report would get the plan: the hub could not tell it from the old one.
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return after.Client().Get(t.Context(), client.ObjectKeyFromObject(&v1alpha1.ClusterReport{ObjectMeta: mailbox}), &v1alpha1.ClusterReport{}) == nil
	}), "the other cluster's agent reports")

	shared.redirectMember(t, lab)
	t.Cleanup(func() { shared.redirectMember(t, bergen) })
	m := shared.AwaitMember(t, bergen, "another cluster",
		hasCondition(v1alpha1.ConditionIdentityConfirmed, metav1.ConditionFalse, v1alpha1.ReasonAnotherCluster,
			string(after.ClusterUID(t)), string(before.ClusterUID(t)), v1alpha1.AnnotationAcceptCluster),
		hasCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonAnotherCluster),
		hasCondition(v1alpha1.ConditionReachable, metav1.ConditionTrue, v1alpha1.ReasonConnected), hasImages(1))
	assert.Equal(t, before.ClusterUID(t), m.Status.ClusterUID)
	shared.awaitImage(t, "of-the-old", func(image readapi.ImageDetail) bool {
		return image.Unknown == 1 && len(image.PerMember) == 1 && image.PerMember[0].Unknown == v1alpha1.ReasonAnotherCluster
	})
	// What is planned meanwhile goes to the others.
	shared.setConcurrency(t, "3")
	shared.AwaitMember(t, reachableFake, "under the new policy", isHealthy, hasBudget(3))
	shared.AwaitMember(t, bergen, "not told", hasCondition(v1alpha1.ConditionPolicyAcknowledged, metav1.ConditionFalse, v1alpha1.ReasonNotAcknowledged))
	for _, o := range []client.Object{&v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}} {
		err := after.Client().Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.MailboxName}, o)
		assert.True(t, apierrors.IsNotFound(err), "%T in a cluster that nobody accepted: %v", o, err)
	}
	still, err := shared.Hub.GetMemberImages(t.Context(), bergen, "")
	require.NoError(t, err)
	assert.Equal(t, old.Images, still.Images, "nothing is merged")
	assert.Equal(t, v1alpha1.ReasonAnotherCluster, still.Unknown)

	shared.acceptIdentity(t, after.ClusterUID(t))
	m = shared.AwaitMember(t, bergen, "the new cluster, healthy", isHealthy, hasBudget(3), hasImages(1), func(m *v1alpha1.MemberCluster) bool {
		return m.Status.ClusterUID == after.ClusterUID(t)
	})
	assert.True(t, hasCondition(v1alpha1.ConditionIdentityConfirmed, metav1.ConditionTrue, v1alpha1.ReasonSameCluster)(m), testenv.DescribeMember(m))
	shared.awaitImage(t, "of-the-new", func(image readapi.ImageDetail) bool { return image.Unknown == 0 && len(image.PerMember) == 1 })
	shared.awaitImage(t, "of-the-old", func(image readapi.ImageDetail) bool { return len(image.PerMember) == 0 })

	shared.redirectMember(t, bergen)
	shared.AwaitMember(t, bergen, "another cluster", hasCondition(v1alpha1.ConditionIdentityConfirmed, metav1.ConditionFalse, v1alpha1.ReasonAnotherCluster))
	shared.acceptIdentity(t, before.ClusterUID(t))
	shared.AwaitMember(t, bergen, "the old cluster, healthy", isHealthy, hasBudget(3), hasImages(1), func(m *v1alpha1.MemberCluster) bool {
		return m.Status.ClusterUID == before.ClusterUID(t)
	})
	shared.awaitImage(t, "of-the-new", func(image readapi.ImageDetail) bool { return len(image.PerMember) == 0 })
}

// redirectMember changes the kubeconfig Secret of bergen to another cluster's.
func (f *testFleet) redirectMember(t *testing.T, name string) {
	t.Helper()
	cfg, err := f.Members[name].HubConfig(context.Background())
	require.NoError(t, err)
	require.NoError(t, f.PutKubeconfig(context.Background(), bergen, cfg))
}

// acceptIdentity says that bergen is a cluster.
func (f *testFleet) acceptIdentity(t *testing.T, uid types.UID) {
	t.Helper()
	m := f.GetMember(t, bergen)
	base := m.DeepCopy()
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.AnnotationAcceptCluster, string(uid))
	require.NoError(t, f.Patch(t.Context(), m, client.MergeFrom(base)))
}
