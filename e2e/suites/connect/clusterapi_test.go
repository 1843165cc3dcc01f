//go:build linux

package connect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/chart"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/hub/controllers/connection"
	"github.com/pelotech/ot-fleet/hub/credential"
)

// capiNamespace holds the Clusters of Cluster API on the hub.
const capiNamespace = "tenants"

// newClusterSecret is the kubeconfig Secret of a Cluster, as Cluster API creates it.
func newClusterSecret(t *testing.T, cluster string, cfg *rest.Config) *corev1.Secret {
	t.Helper()
	createNamespace(t, hubPlane, capiNamespace)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: capiNamespace, Name: cluster + "-kubeconfig", Labels: map[string]string{clusterv1.ClusterNameLabel: cluster}},
		Type:       clusterv1.ClusterSecretType,
		Data:       map[string][]byte{"value": newKubeconfig(t, cfg)},
	}
	err := hubPlane.Create(t.Context(), secret)
	if apierrors.IsAlreadyExists(err) {
		err = hubPlane.Update(t.Context(), secret)
	}
	require.NoError(t, err)
	return secret
}

func createNamespace(t *testing.T, p plane, name string) {
	t.Helper()
	if err := p.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
}

// createClusterMember registers a member by its Cluster, with an agent namespace of its own.
func createClusterMember(t *testing.T, name string) {
	t.Helper()
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.MemberClusterSpec{
		Connection: v1alpha1.MemberConnection{ClusterAPI: &v1alpha1.ClusterAPIRef{Namespace: capiNamespace, Name: name}}, AgentNamespace: "agent-of-" + name,
	}}
	require.NoError(t, hubPlane.Create(t.Context(), member))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(hubPlane.Delete(context.Background(), member))) })
}

// getMemberToken returns the credential that the hub stores for a member.
func getMemberToken(t *testing.T, member string) (*rest.Config, *corev1.Secret) {
	t.Helper()
	secret := &corev1.Secret{}
	require.NoError(t, hubPlane.Get(t.Context(), client.ObjectKey{Namespace: hubNamespace, Name: connection.TokenSecretName(member)}, secret))
	cfg, _, err := hubclient.ParseKubeconfig(secret.Data["kubeconfig"])
	require.NoError(t, err)
	return cfg, secret
}

func awaitRenewed(t *testing.T, member, than string) (token string) {
	t.Helper()
	require.Eventually(t, func() bool {
		cfg, _ := getMemberToken(t, member)
		token = cfg.BearerToken
		return token != than
	}, patience, tick, "the token of %s is renewed", member)
	return token
}

func TestClusterAPITokenOnly(t *testing.T) {
	// Without a controller-manager a namespace is never deleted: each run uses another.
	name := fmt.Sprintf("bought-%d", time.Now().UnixNano())
	createClusterMember(t, name)
	require.Eventually(t, func() bool {
		return strings.Contains(connectionState(name).Message, "Secret tenants/"+name+"-kubeconfig does not exist")
	}, patience, tick)
	admin := newClusterSecret(t, name, steadyPlane.Config())
	require.Eventually(t, func() bool {
		return strings.Contains(connectionState(name).Message, "the member has no namespace agent-of-"+name)
	}, patience, tick)
	createNamespace(t, steadyPlane, "agent-of-"+name)
	m := awaitConnected(t, name)

	// From here on the hub has the token only.
	require.NoError(t, hubPlane.Delete(t.Context(), admin))
	cfg, secret := getMemberToken(t, name)
	require.NotContains(t, string(secret.Data["kubeconfig"]), steadyPlane.Config().BearerToken, "the administrator's credential is not kept")
	require.Len(t, secret.OwnerReferences, 1)
	require.NoError(t, steadyPlane.Get(t.Context(), client.ObjectKey{Namespace: "agent-of-" + name, Name: credential.AnchorSecret}, &corev1.Secret{}), "its tokens are bound to this Secret")
	awaitRotation(t, &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name, UID: secret.OwnerReferences[0].UID}}, v1alpha1.ReasonRotated)
	token := awaitRenewed(t, name, cfg.BearerToken)
	awaitRenewed(t, name, token)
	now, err := memberProvider.GetMember(name)
	require.NoError(t, err)
	require.Same(t, m, now, "a renewed token needs no new connection")
	require.NoError(t, now.GetClient().List(t.Context(), &v1alpha1.ClusterPlanList{}, client.InNamespace(now.Namespace)))

	require.NoError(t, hubPlane.Delete(t.Context(), &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	require.Eventually(t, func() bool {
		return apierrors.IsNotFound(hubPlane.Get(t.Context(), client.ObjectKeyFromObject(secret), &corev1.Secret{})) && !connectionState(name).Known
	}, patience, tick, "the token goes with its member")
}

func TestClusterAPITokenRefused(t *testing.T) {
	newClusterSecret(t, "robbed", steadyPlane.Config())
	createNamespace(t, steadyPlane, "agent-of-robbed")
	createClusterMember(t, "robbed")
	awaitConnected(t, "robbed")
	account := metav1.ObjectMeta{Namespace: "agent-of-robbed", Name: connection.HubAccount}

	// Tokens of a deleted account are invalid.
	before := &corev1.ServiceAccount{}
	require.NoError(t, steadyPlane.Get(t.Context(), client.ObjectKey{Namespace: account.Namespace, Name: account.Name}, before))
	require.NoError(t, steadyPlane.Delete(t.Context(), before))
	require.Eventually(t, func() bool {
		after := &corev1.ServiceAccount{}
		return steadyPlane.Get(t.Context(), client.ObjectKeyFromObject(before), after) == nil && after.UID != before.UID
	}, patience, tick, "it is made again")
	require.Eventually(t, func() bool {
		for _, e := range listEvents(t) {
			if e.Reason == "TokenRefused" && e.Regarding.Name == "robbed" {
				return true
			}
		}
		return false
	}, patience, tick, "and an event says so")
	awaitConnected(t, "robbed")

	// Its permissions are gone, that to renew the token included.
	require.NoError(t, steadyPlane.Delete(t.Context(), &rbacv1.RoleBinding{ObjectMeta: account}))
	require.Eventually(t, func() bool {
		return steadyPlane.Get(t.Context(), client.ObjectKeyFromObject(before), &rbacv1.RoleBinding{}) == nil
	}, patience, tick, "they are given again")
	awaitConnected(t, "robbed")
}

// TestClusterAPIUnreadable runs a hub whose chart was installed without Cluster API.
func TestClusterAPIUnreadable(t *testing.T) {
	newClusterSecret(t, "hidden", steadyPlane.Config())
	createNamespace(t, steadyPlane, "agent-of-hidden")
	role := &rbacv1.ClusterRole{}
	require.NoError(t, hubPlane.Get(t.Context(), client.ObjectKey{Name: "ot-hub"}, role))
	all := role.Rules
	role.Rules = slices.DeleteFunc(slices.Clone(all), func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "secrets") })
	require.Len(t, role.Rules, len(all)-1)
	require.NoError(t, hubPlane.Update(t.Context(), role))
	again := func() {
		require.NoError(t, hubPlane.Get(context.Background(), client.ObjectKey{Name: "ot-hub"}, role))
		role.Rules = all
		require.NoError(t, hubPlane.Update(context.Background(), role))
	}
	t.Cleanup(again)
	cfg, err := hubPlane.ServiceAccountConfig(t.Context(), hubNamespace, "ot-hub")
	require.NoError(t, err)
	asHub, err := client.New(cfg, client.Options{Scheme: scheme})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return apierrors.IsForbidden(asHub.Get(t.Context(), client.ObjectKey{Namespace: capiNamespace, Name: "hidden-kubeconfig"}, &corev1.Secret{}))
	}, patience, tick)

	createClusterMember(t, "hidden")
	require.Contains(t, awaitState(t, "hidden", v1alpha1.ReasonCredentialsMissing).Message, "the hub may not read Secret tenants/hidden-kubeconfig, the kubeconfig of Cluster tenants/hidden: set clusterAPI.enabled in the hub's chart")
	again()
	awaitConnected(t, "hidden")
}

// TestClusterAPIKeepsForeignMember creates objects with the hub's names in the agent's
// namespace that do not belong to its account.
func TestClusterAPIKeepsForeignMember(t *testing.T) {
	testenv.RunInTurn(t, 3)
	const strangers = "in the member was created neither by the hub nor by chart ot-agent"
	helms := map[string]string{"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/name": "ot-agent"}
	cases := map[string]struct {
		object      func(namespace string) client.Object
		wantMessage string
	}{
		"account": {func(namespace string) client.Object {
			return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: connection.HubAccount}}
		}, strangers},
		"role": {func(namespace string) client.Object {
			return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: connection.HubAccount, Labels: helms}}
		}, strangers},
		"binding": {func(namespace string) client.Object {
			return &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: connection.HubAccount},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: connection.HubAccount},
			}
		}, strangers},
	}
	for _, kind := range []string{"ServiceAccount", "Role", "RoleBinding"} {
		c := cases["hub-"+strings.ToLower(kind)]
		c.wantMessage = "in the member belongs to a hub that runs there"
		c.object = func(namespace string) client.Object {
			objects, err := chart.Render(t.Context(), "charts/ot-hub", "ot-hub", namespace, nil)
			require.NoError(t, err)
			for _, object := range objects {
				if object.GetKind() == kind && object.GetNamespace() == namespace && object.GetName() == connection.HubAccount {
					return object
				}
			}
			require.Fail(t, "the hub's chart has no such object", kind)
			return nil
		}
		cases["hub-"+strings.ToLower(kind)] = c
	}
	for name, c := range cases {
		namespace := "agent-of-" + name
		newClusterSecret(t, name, steadyPlane.Config())
		createNamespace(t, steadyPlane, namespace)
		obj := c.object(namespace)
		require.NoError(t, steadyPlane.Create(t.Context(), obj))
		t.Cleanup(func() { require.NoError(t, steadyPlane.Delete(context.Background(), obj)) })
		before := obj.GetResourceVersion()
		createClusterMember(t, name)
		message := awaitState(t, name, v1alpha1.ReasonCredentialsMissing).Message
		require.Contains(t, message, namespace+"/ot-hub "+c.wantMessage)
		require.NoError(t, steadyPlane.Get(t.Context(), client.ObjectKeyFromObject(obj), obj))
		require.Equal(t, before, obj.GetResourceVersion(), "%s is left as it was", name)
		for _, list := range []client.ObjectList{&rbacv1.RoleList{}, &rbacv1.RoleBindingList{}} {
			require.NoError(t, steadyPlane.List(t.Context(), list, client.InNamespace(namespace)))
			require.LessOrEqual(t, meta.LenList(list), 1, "nothing is made beside %s", name)
		}
		err := hubPlane.Get(t.Context(), client.ObjectKey{Namespace: hubNamespace, Name: connection.TokenSecretName(name)}, &corev1.Secret{})
		require.True(t, apierrors.IsNotFound(err), "no token: %v", err)
	}
}

// TestClusterAPIChartAccount uses the account that ot-agent's chart created.
func TestClusterAPIChartAccount(t *testing.T) {
	const name, namespace = "charted", "agent-of-charted"
	newClusterSecret(t, name, steadyPlane.Config())
	createNamespace(t, steadyPlane, namespace)
	objects, err := chart.Render(t.Context(), "charts/ot-agent", "ot-agent", namespace, map[string]any{"hub": map[string]any{"serviceAccount": map[string]any{"create": true}}})
	require.NoError(t, err)
	for _, object := range objects {
		if object.GetName() == connection.HubAccount {
			require.NoError(t, steadyPlane.Create(t.Context(), object))
			t.Cleanup(func() { require.NoError(t, steadyPlane.Delete(context.Background(), object)) })
		}
	}
	createClusterMember(t, name)
	awaitConnected(t, name)
}

// TestClusterAPIMoves moves the API server to another address.
func TestClusterAPIMoves(t *testing.T) {
	testenv.RunInTurn(t, 2)
	way, err := faults.StartLink(steadyPlane.Config())
	require.NoError(t, err)
	defer way.Close()
	through := steadyPlane.Config()
	way.Redirect(through)
	newClusterSecret(t, "moving", through)
	createNamespace(t, steadyPlane, "agent-of-moving")
	createClusterMember(t, "moving")
	require.Equal(t, through.Host, awaitConnected(t, "moving").GetConfig().Host)

	way.Cut()
	awaitState(t, "moving", v1alpha1.ReasonUnreachable)
	newClusterSecret(t, "moving", steadyPlane.Config())
	require.Eventually(t, func() bool {
		m, err := memberProvider.GetMember("moving")
		return err == nil && m.GetConfig().Host == steadyPlane.Config().Host
	}, patience, tick, "the hub follows")
}

// TestClusterAPIUnreachable shows the reason why the hub cannot create its account.
func TestClusterAPIUnreachable(t *testing.T) {
	nobody := steadyPlane.Config()
	nobody.Host = "https://127.0.0.1:1"
	newClusterSecret(t, "nowhere", nobody)
	createClusterMember(t, "nowhere")
	require.Contains(t, awaitState(t, "nowhere", v1alpha1.ReasonUnreachable).Message, "the connection is refused")

	stranger := steadyPlane.Config()
	stranger.BearerToken = "none"
	newClusterSecret(t, "nowhere", stranger)
	awaitState(t, "nowhere", v1alpha1.ReasonUnauthorized)

	stranger.CAData = hubPlane.Config().CAData
	newClusterSecret(t, "nowhere", stranger)
	awaitState(t, "nowhere", v1alpha1.ReasonCertificateNotTrusted)
	_, err := memberProvider.GetMember("nowhere")
	require.Error(t, err)
}
