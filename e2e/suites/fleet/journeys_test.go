//go:build linux

package fleet_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	policycontroller "github.com/pelotech/ot-fleet/hub/controllers/policy"
)

func TestMembersGetTheirBudgets(t *testing.T) {
	for name, want := range map[string]struct {
		budget int32
		source string
	}{
		frankfurt: {5, "override cluster=frankfurt"},
		edge:      {1, "override edge=true"},
	} {
		m := shared.AwaitMember(t, name, "ready, with its budget", hasBudget(want.budget))
		assert.True(t, isConditionTrue(m, v1alpha1.ConditionReachable), name)
		assert.True(t, isConditionTrue(m, v1alpha1.ConditionAgentHealthy), name)
		assert.True(t, isConditionTrue(m, v1alpha1.ConditionPolicyAcknowledged), name)
		assert.Contains(t, m.Status.Policy.Source, want.source, name)
		assert.Equal(t, m.Status.Plan, m.Status.AcknowledgedPlan, name)
		assert.NotEmpty(t, m.Status.AgentVersion, name)

		assert.Equal(t, shared.Members[name].ClusterUID(t), m.Status.ClusterUID, name)
		// Another controller syncs the grant.
		require.True(t, testenv.AwaitCondition(t, func() bool {
			grant := &v1alpha1.TransferGrant{}
			err := shared.Members[name].Client().Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.MailboxName}, grant)
			return err == nil && grant.Spec.Unlimited
		}), "%s has no grant without a limit", name)
	}
	shared.awaitMetric(t, `ot_hub_members{state="healthy"}`, 2)
	shared.awaitMetric(t, `ot_hub_member_budget{member="edge"}`, 1)
	shared.awaitMetric(t, "ot_hub_policy_valid", 1)
}

func TestPolicyChangeIsAcknowledged(t *testing.T) {
	before := shared.AwaitMember(t, edge, "ready", hasBudget(1))
	shared.SetPolicyForTest(t, map[string]string{"overrides": "- selector: {matchLabels: {edge: \"true\"}}\n  concurrency: \"2\"\n"})
	shared.AwaitMember(t, frankfurt, "the fleet's default", hasBudget(3))
	after := shared.AwaitMember(t, edge, "its new budget", hasBudget(2))
	assert.Positive(t, after.Status.Plan.Compare(*before.Status.Plan))
	assert.Equal(t, "fleet default", shared.GetMember(t, frankfurt).Status.Policy.Source)
	shared.awaitMetric(t, `ot_hub_member_plan_acknowledged{member="edge"}`, 1)
}

func TestMemberLabelsSelectBudget(t *testing.T) {
	m := shared.AwaitMember(t, edge, "ready", hasBudget(1))
	relabel := func(value string) {
		base := m.DeepCopy()
		m.Labels[edge] = value
		require.NoError(t, shared.Patch(t.Context(), m, client.MergeFrom(base)))
	}
	relabel("false")
	shared.AwaitMember(t, edge, "the fleet's default", hasBudget(3))
	relabel("true")
	shared.AwaitMember(t, edge, "what its label selects", hasBudget(1))
}

func TestMemberImageIsReportedToHub(t *testing.T) {
	shared.AwaitMember(t, frankfurt, "ready", hasBudget(5))
	shared.AwaitMember(t, edge, "ready", hasBudget(1))
	shared.Members[frankfurt].CreateImageForTest(t, "journey")
	shared.AwaitMember(t, frankfurt, "one image ready", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Images != nil && m.Status.Images.Total == 1 && m.Status.Images.Ready == 1 && m.Status.Images.Unreferenced == 1
	})
	shared.awaitMetric(t, `ot_hub_member_images{member="frankfurt",phase="Succeeded"}`, 1)

	var images []readapi.Image
	require.True(t, testenv.AwaitCondition(t, func() (done bool) {
		var err error
		images, err = shared.Hub.ListImages(t.Context())
		return err == nil && len(images) == 1 && images[0].Phases[v1alpha1.PhaseSucceeded] == 1 && images[0].Unknown == 0
	}), "images: %+v", &images)
	assert.Contains(t, images[0].Source, "journey.qcow2")
	detail, err := shared.Hub.GetImage(t.Context(), images[0].Source)
	require.NoError(t, err)
	require.Len(t, detail.PerMember, 1)
	assert.Equal(t, frankfurt, detail.PerMember[0].Member)
	assert.Equal(t, int64(1<<30), detail.Bytes)

	page, err := shared.Hub.GetMemberImages(t.Context(), frankfurt, "")
	require.NoError(t, err)
	require.Len(t, page.Images, 1)
	assert.Equal(t, "journey", page.Images[0].Name)
	assert.Empty(t, page.Next)
	members, err := shared.Hub.ListMembers(t.Context())
	require.NoError(t, err)
	require.Len(t, members, 2)
	assert.Equal(t, []string{edge, frankfurt}, []string{members[0].Member, members[1].Member})
	assert.Equal(t, metav1.ConditionTrue, members[1].Ready)
}

func TestReadAPIAuthorization(t *testing.T) {
	require.True(t, testenv.AwaitCondition(t, func() bool {
		status, err := shared.Hub.GetStatus(t.Context(), "/fleet/v1/members", shared.Plane.Config().BearerToken)
		return err == nil && status == http.StatusOK
	}))
	status, err := shared.Hub.GetStatus(t.Context(), "/fleet/v1/members", "")
	require.NoError(t, err)
	assert.Equal(t, http.StatusUnauthorized, status)
	stranger, err := shared.Plane.ServiceAccountConfig(t.Context(), "default", "default")
	require.NoError(t, err)
	for _, path := range []string{"/metrics", "/fleet/v1/members", "/fleet/v1/images"} {
		status, err = shared.Hub.GetStatus(t.Context(), path, stranger.BearerToken)
		require.NoError(t, err)
		assert.Equal(t, http.StatusForbidden, status, path)
	}
	require.ErrorContains(t, shared.Hub.GetJSON(t.Context(), "/fleet/v1/images?limit=0", nil), "status 400")
	require.ErrorContains(t, shared.Hub.GetJSON(t.Context(), "/fleet/v1/members/images?member=nobody", nil), "status 404")
	var list readapi.MemberList
	require.NoError(t, shared.Hub.GetJSON(t.Context(), "/fleet/v1/members?limit=1", &list))
	require.Len(t, list.Members, 1)
	assert.Equal(t, edge, list.Next)
}

func TestInvalidPolicyKeepsLastGood(t *testing.T) {
	before := shared.AwaitMember(t, frankfurt, "ready", hasBudget(5))
	shared.awaitMetric(t, "ot_hub_policy_valid", 1)
	testenv.AdmitInvalidPolicy(t, shared)
	shared.SetPolicyForTest(t, map[string]string{"concurrency": "many"})
	shared.awaitMetric(t, "ot_hub_policy_valid", 0)
	shared.awaitMetric(t, `ot_hub_policy_key_invalid{key="concurrency"}`, 1)
	require.True(t, testenv.AwaitCondition(t, func() bool {
		var list eventsv1.EventList
		require.NoError(t, shared.List(t.Context(), &list, client.InNamespace(program.PolicyNamespace)))
		for i := range list.Items {
			if e := &list.Items[i]; e.Reason == "PolicyInvalid" && strings.Contains(e.Note, `"many" is not a whole number`) {
				return true
			}
		}
		return false
	}), "no event says why")

	kept := &corev1.ConfigMap{}
	require.NoError(t, shared.Get(t.Context(), client.ObjectKey{Namespace: program.HubNamespace, Name: policycontroller.InForceConfigMap}, kept))
	assert.Equal(t, policyData, kept.Data)
	assert.Contains(t, kept.Annotations[policycontroller.AnnotationRefused], `"many"`)
	shared.AwaitMember(t, frankfurt, "says so, and stays ready", func(m *v1alpha1.MemberCluster) bool {
		c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionReady)
		return c.Status == metav1.ConditionTrue && strings.Contains(c.Message, `on the hub, ConfigMap sync-operator/sync-operator-policy is not used: concurrency: "many" is not a whole number`)
	})

	// A hub that starts with the invalid policy applies the last good one, too.
	require.NoError(t, shared.Hub.Stop(testenv.Patience))
	require.NoError(t, shared.StartHub(t.Context()))
	shared.awaitMetric(t, `ot_hub_policy_key_invalid{key="concurrency"}`, 1)
	shared.awaitMetric(t, `ot_hub_members{state="unknown"}`, 0)
	after := shared.AwaitMember(t, frankfurt, "as it was", hasBudget(5))
	assert.Equal(t, before.Status.Plan, after.Status.Plan)
	assert.Equal(t, before.Status.Policy, after.Status.Policy)
}

func TestPreviewOfPolicyChange(t *testing.T) {
	shared.AwaitMember(t, frankfurt, "ready", hasBudget(5))
	shared.AwaitMember(t, edge, "ready", hasBudget(1))
	preview := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: program.PolicyNamespace, Name: "next", Labels: map[string]string{v1alpha1.LabelPolicyPreview: ""}},
		Data:       map[string]string{"concurrency": "7"},
	}
	require.NoError(t, shared.Create(t.Context(), preview))
	t.Cleanup(func() { require.NoError(t, shared.Delete(context.Background(), preview)) })
	awaitAnswer := func(words ...string) {
		t.Helper()
		answer := ""
		require.True(t, testenv.AwaitCondition(t, func() bool {
			require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(preview), preview))
			answer = preview.Annotations[v1alpha1.AnnotationPreview]
			for _, part := range words {
				if !strings.Contains(answer, part) {
					return false
				}
			}
			return true
		}), "the answer is %q, want %q in it", &answer, words)
	}
	awaitAnswer(frankfurt, edge, "7")
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the hub writes its answer
		if err := shared.Get(t.Context(), client.ObjectKeyFromObject(preview), preview); err != nil {
			return err
		}
		preview.Data["concurrency"] = "lots"
		return shared.Update(t.Context(), preview)
	}))
	awaitAnswer("would be refused", `"lots"`)
	assert.Equal(t, ptr.To[int32](5), shared.GetMember(t, frankfurt).Status.Budget, "a preview applies nothing")
}

func TestRemovedMemberIsCleanedUp(t *testing.T) {
	m := shared.AwaitMember(t, edge, "ready", hasBudget(1))
	inMember := client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.MailboxName}
	require.NoError(t, shared.Members[edge].Client().Get(t.Context(), inMember, &v1alpha1.ClusterPlan{}))
	require.NoError(t, shared.Delete(t.Context(), m))
	gone := func(c client.Client, key client.ObjectKey, o client.Object) {
		t.Helper()
		require.True(t, testenv.AwaitCondition(t, func() bool { return apierrors.IsNotFound(c.Get(t.Context(), key, o)) }), "%T %s is still there", o, key)
	}
	gone(shared, client.ObjectKeyFromObject(m), &v1alpha1.MemberCluster{})
	gone(shared, client.ObjectKey{Name: v1alpha1.MemberNamespacePrefix + edge}, &corev1.Namespace{})
	gone(shared.Members[edge].Client(), inMember, &v1alpha1.ClusterPlan{})
	gone(shared.Members[edge].Client(), inMember, &v1alpha1.TransferGrant{})
	shared.awaitMetric(t, `ot_hub_members{state="all"}`, 1)

	// The same cluster can register again under the same name.
	require.NoError(t, shared.Join(t.Context(), shared.Members[edge]))
	shared.AwaitMember(t, edge, "back", hasBudget(1))
}

func TestForeignNamespaceIsKept(t *testing.T) {
	theirs := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.MemberNamespacePrefix + "taken"}}
	require.NoError(t, shared.Create(t.Context(), theirs))
	m := &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "taken"},
		Spec:       v1alpha1.MemberClusterSpec{Connection: v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "not-there"}}},
	}
	require.NoError(t, shared.Create(t.Context(), m))
	shared.AwaitMember(t, "taken", "not ready", func(m *v1alpha1.MemberCluster) bool { return hasReason(m, v1alpha1.ConditionReady, "NamespaceTaken") })
	require.NoError(t, shared.Delete(t.Context(), m))
	shared.AwaitGone(t, m)
	require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs))
	assert.True(t, theirs.DeletionTimestamp.IsZero())
	require.NoError(t, shared.Delete(t.Context(), theirs))
}
