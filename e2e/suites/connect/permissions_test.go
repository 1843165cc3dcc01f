//go:build linux

package connect

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/chart"
	"github.com/pelotech/ot-fleet/e2e/harness/rbaccheck"
	"github.com/pelotech/ot-fleet/hub/controllers/connection"
)

// permitsHub is all that the hub may do in a member.
func permitsHub(r rbaccheck.Request) bool {
	in := func(all ...string) bool { return r.Namespace == "agent-of-watched" && slices.Contains(all, r.Verb) }
	switch r.Group + "/" + r.Resource {
	case "pelotech.ot/clusterplans", "pelotech.ot/transfergrants":
		return in("get", "list", "watch", "create", "update", "delete")
	case "pelotech.ot/clusterreports":
		return in("get", "list", "watch")
	case "/serviceaccounts/token":
		return in("create") && r.Object == connection.HubAccount
	}
	return false
}

// TestRightsInMember tries the hub's credential in a member that Cluster API created on
// every resource, by its rules and by real requests.
func TestRightsInMember(t *testing.T) {
	newClusterSecret(t, "watched", steadyPlane.Config())
	createNamespace(t, steadyPlane, "agent-of-watched")
	createClusterMember(t, "watched")
	awaitConnected(t, "watched")
	cfg, _ := getMemberToken(t, "watched")
	all, err := rbaccheck.ServedResources(steadyPlane.Config())
	require.NoError(t, err)
	require.Greater(t, len(all), 100)

	t.Run("as told", func(t *testing.T) {
		tried, err := rbaccheck.CheckRules(t.Context(), cfg, all, []string{"agent-of-watched", agentNamespace, ""}, []string{connection.HubAccount}, permitsHub)
		require.NoError(t, err)
		assert.Empty(t, tried.Unexpected)
		t.Logf("of %d questions about %d resources and their parts, %d are denied", tried.Attempts, len(all), tried.Refusals)
	})
	t.Run("as answered", func(t *testing.T) {
		tried, err := rbaccheck.CheckByRequest(t.Context(), cfg, all, []string{"agent-of-watched", agentNamespace, "kube-system"}, permitsHub)
		require.NoError(t, err)
		assert.Empty(t, tried.Unexpected)
		t.Logf("of %d requests, %d were refused", tried.Attempts, tried.Refusals)
	})
	t.Run("as the chart's", requireChartRights)
	t.Run("what it needs", func(t *testing.T) { requireNeededRights(t, cfg) })
}

// requireNeededRights requires that the hub can make its requests.
func requireNeededRights(t *testing.T, cfg *rest.Config) {
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	require.NoError(t, err)
	const namespace = "agent-of-watched"
	meta := metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.MailboxName}
	for _, obj := range []client.Object{
		&v1alpha1.TransferGrant{ObjectMeta: meta, Spec: v1alpha1.TransferGrantSpec{ClusterUID: "uid", Unlimited: true}},
		&v1alpha1.ClusterPlan{ObjectMeta: meta, Spec: v1alpha1.ClusterPlanSpec{ClusterUID: "uid"}},
	} {
		require.NoError(t, c.Create(t.Context(), obj))
		require.NoError(t, c.Update(t.Context(), obj))
		require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(obj), obj))
		require.NoError(t, c.Delete(t.Context(), obj))
	}
	require.NoError(t, c.List(t.Context(), &v1alpha1.ClusterReportList{}, client.InNamespace(namespace)))

	request := func(namespace, name string) error {
		return c.SubResource("token").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}, &authenticationv1.TokenRequest{})
	}
	require.NoError(t, request(namespace, connection.HubAccount))
	require.True(t, apierrors.IsForbidden(request(namespace, "default")), "no token but its own")
	require.True(t, apierrors.IsForbidden(request(agentNamespace, connection.HubAccount)), "nor that of one of its name")

	other := rest.CopyConfig(cfg)
	other.Impersonate = rest.ImpersonationConfig{UserName: "admin", Groups: []string{"system:masters"}}
	c, err = client.New(other, client.Options{Scheme: scheme})
	require.NoError(t, err)
	require.True(t, apierrors.IsForbidden(c.List(t.Context(), &corev1.SecretList{})), "it is nobody else")
}

// requireChartRights requires that the hub creates the same account and Role as ot-agent's chart.
func requireChartRights(t *testing.T) {
	const namespace = "agent-of-watched"
	objects, err := chart.Render(t.Context(), "charts/ot-agent", "ot-agent", namespace, map[string]any{"hub": map[string]any{"serviceAccount": map[string]any{"create": true}}})
	require.NoError(t, err)
	compared := 0
	for _, object := range objects {
		made := &unstructured.Unstructured{}
		made.SetGroupVersionKind(object.GroupVersionKind())
		if object.GetName() != connection.HubAccount || steadyPlane.Get(t.Context(), client.ObjectKeyFromObject(object), made) != nil {
			continue
		}
		compared++
		for _, field := range []string{"rules", "roleRef", "subjects", "automountServiceAccountToken"} {
			require.Equal(t, object.Object[field], made.Object[field], "%s of %s", field, object.GetKind())
		}
	}
	require.Equal(t, 3, compared, "ServiceAccount, Role and RoleBinding")
}
