//go:build linux

package connect

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/pelotech/ot-fleet/api/dial"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/members"
)

func TestKubeconfigConnects(t *testing.T) {
	joinBySecret(t, "plain", account(t, steady, "plain"))
	m := connected(t, "plain")
	report(t, steady, "plain-page", "plain")

	var reports v1alpha1.ClusterReportList
	require.NoError(t, m.GetCache().List(t.Context(), &reports))
	require.NotEmpty(t, reports.Items, "its cache has what the controller has seen")
	err := m.GetCache().Get(t.Context(), types.NamespacedName{Namespace: agentNamespace, Name: "x"}, &v1alpha1.MemberCluster{})
	require.Error(t, err, "nothing but the mailbox is ever watched in a member")
	require.False(t, apierrors.IsNotFound(err), "got %v", err)
	err = m.GetClient().Create(t.Context(), &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: "default"}})
	require.True(t, apierrors.IsForbidden(err), "its rights are those of the kubeconfig, got %v", err)
}

func TestRotation(t *testing.T) {
	first := account(t, steady, "rotated")
	joinBySecret(t, "rotated", first)
	m := connected(t, "rotated")

	second := account(t, steady, "rotated-too")
	put(t, "rotated", second)
	require.Eventually(t, func() bool { return user(t, m) == "system:serviceaccount:ot-agent:rotated-too" }, patience, tick,
		"a new token is taken up")
	same, err := provider.Member("rotated")
	require.NoError(t, err)
	require.Same(t, m, same, "by the connection that was there")

	put(t, "rotated", account(t, mortal, "rotated"))
	require.Eventually(t, func() bool {
		now, err := provider.Member("rotated")
		return err == nil && now != m
	}, patience, tick, "another API server is another connection")
	require.Equal(t, mortal.Config().Host, connected(t, "rotated").GetConfig().Host)
	report(t, mortal, "rotated-page", "rotated")
}

// user is what a refusal says that the member takes the hub for.
func user(t *testing.T, m *members.Member) string {
	t.Helper()
	err := m.GetClient().Delete(t.Context(), &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: "none"}})
	require.True(t, apierrors.IsForbidden(err), "got %v", err)
	for _, name := range []string{"rotated-too", "rotated"} {
		if full := "system:serviceaccount:ot-agent:" + name; strings.Contains(err.Error(), `"`+full+`"`) {
			return full
		}
	}
	return err.Error()
}

func TestWithoutCredential(t *testing.T) {
	good := account(t, steady, "careless")
	join(t, "careless", v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "careless", Key: "kubeconfig"}})
	state(t, "careless", v1alpha1.ReasonCredentials)
	require.Contains(t, told("careless").Message, "Secret ot-hub/careless is not there")

	for content, wantMessage := range map[string]string{
		"":            "has no key kubeconfig",
		"{]":          "reading the kubeconfig",
		withExec:      `user "me" needs a program`,
		withTokenFile: `user "me" names a file`,
	} {
		put(t, "careless", []byte(content))
		require.Eventually(t, func() bool { return strings.Contains(told("careless").Message, wantMessage) }, patience, tick, wantMessage)
		require.Equal(t, v1alpha1.ReasonCredentials, told("careless").Reason)
	}

	put(t, "careless", good)
	connected(t, "careless")
}

// TestSecretGoes has the Secret of a member that is connected deleted.
func TestSecretGoes(t *testing.T) {
	good := account(t, steady, "bereft")
	joinBySecret(t, "bereft", good)
	m := connected(t, "bereft")
	gone := func(wanted bool) {
		require.Eventually(t, func() bool {
			return strings.Contains(told("bereft").Message, "Secret ot-hub/bereft is gone") == wanted
		}, patience, tick, "the Secret is gone: %v", wanted)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: hubNamespace, Name: "bereft"}}
	require.NoError(t, hub.Delete(t.Context(), secret))
	gone(true)
	require.Same(t, m, connected(t, "bereft"), "what was in it is still good")
	put(t, "bereft", good)
	gone(false)
	require.Same(t, m, connected(t, "bereft"))

	// It is there for whoever cleans up in the member, and goes with it.
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "bereft"}}
	require.NoError(t, hub.Get(t.Context(), client.ObjectKeyFromObject(member), member))
	member.Finalizers = []string{v1alpha1.FinalizerMember}
	require.NoError(t, hub.Update(t.Context(), member))
	require.NoError(t, hub.Delete(t.Context(), secret))
	gone(true)
	require.NoError(t, hub.Delete(t.Context(), member))
	require.Same(t, m, connected(t, "bereft"))
	require.NoError(t, hub.Get(t.Context(), client.ObjectKeyFromObject(member), member))
	member.Finalizers = nil
	require.NoError(t, hub.Update(t.Context(), member))
	require.Eventually(t, func() bool { return !told("bereft").Known }, patience, tick)

	// Another namespace was never reached by it, nor was another MemberCluster.
	joinBySecret(t, "bereft", good)
	connected(t, "bereft")
	require.NoError(t, hub.Delete(t.Context(), secret))
	gone(true)
	require.NoError(t, hub.Get(t.Context(), client.ObjectKeyFromObject(member), member))
	member.Spec.AgentNamespace = "elsewhere"
	require.NoError(t, hub.Update(t.Context(), member))
	state(t, "bereft", v1alpha1.ReasonCredentials)
}

const (
	clusterAndContext = `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
"contexts": [{"name": "c", "context": {"cluster": "c", "user": "me"}}],
"users": [{"name": "me", "user": `
	withExec      = clusterAndContext + `{"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "interactiveMode": "Never"}}}]}`
	withTokenFile = clusterAndContext + `{"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}}]}`
)

func TestCertificateNotTrusted(t *testing.T) {
	good := account(t, steady, "certified")
	cfg, _, err := dial.ParseKubeconfig(good)
	require.NoError(t, err)
	cfg.CAData = mortal.Config().CAData
	joinBySecret(t, "certified", kubeconfig(t, cfg))
	require.Contains(t, state(t, "certified", v1alpha1.ReasonCertificate).Message, "put the CA that signs it into the kubeconfig")

	put(t, "certified", good)
	connected(t, "certified")
}

func TestCredentialRevoked(t *testing.T) {
	t.Parallel() // an API server remembers for 10 s that a token was good
	joinBySecret(t, "revoked", account(t, steady, "revoked"))
	connected(t, "revoked")

	meta := metav1.ObjectMeta{Namespace: agentNamespace, Name: "revoked"}
	require.NoError(t, steady.Delete(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}))
	require.Contains(t, state(t, "revoked", v1alpha1.ReasonUnauthorized).Message, "expired or was revoked")

	put(t, "revoked", account(t, steady, "revoked"))
	connected(t, "revoked")
	report(t, steady, "revoked-page", "revoked")
}

func TestRightsTakenAway(t *testing.T) {
	joinBySecret(t, "poor", account(t, steady, "poor"))
	connected(t, "poor")
	role := takeRole(t, steady, "poor")
	require.Contains(t, state(t, "poor", v1alpha1.ReasonUnauthorized).Message, "is not allowed enough")
	role.ResourceVersion = ""
	require.NoError(t, steady.Create(t.Context(), role))
	connected(t, "poor")
}

func TestMemberGoes(t *testing.T) {
	joinBySecret(t, "leaving", account(t, steady, "leaving"))
	connected(t, "leaving")
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "leaving"}}
	require.NoError(t, hub.Get(t.Context(), client.ObjectKeyFromObject(member), member))
	member.Finalizers = []string{v1alpha1.FinalizerMember}
	require.NoError(t, hub.Update(t.Context(), member))
	require.NoError(t, hub.Delete(t.Context(), member))

	put(t, "leaving", account(t, mortal, "leaving"))
	require.Eventually(t, func() bool {
		m, err := provider.Member("leaving")
		return err == nil && m.GetConfig().Host == mortal.Config().Host
	}, patience, tick, "whoever cleans up in it can reach it until then")

	require.NoError(t, hub.Get(t.Context(), client.ObjectKeyFromObject(member), member))
	member.Finalizers = nil
	require.NoError(t, hub.Update(t.Context(), member))
	require.Eventually(t, func() bool { return !told("leaving").Known }, patience, tick)
	_, err := provider.Member("leaving")
	require.Error(t, err)
}

// TestMailboxComesAndGoes has the hub's own cluster as a member, where the
// agent's chart is installed after it has joined, and uninstalled again.
func TestMailboxComesAndGoes(t *testing.T) {
	joinBySecret(t, "itself", account(t, hub, "itself"))
	notServed := func() {
		require.Eventually(t, func() bool {
			_, err := provider.Member("itself")
			return err != nil && strings.Contains(told("itself").Message, "is ot-agent's chart installed there")
		}, patience, tick, "there is nothing to watch")
		require.True(t, told("itself").Reachable)
	}
	notServed()
	require.NoError(t, install(mailboxCRDs)(t.Context(), hub.Config()))
	connected(t, "itself")
	report(t, hub, "itself-page", "itself")

	require.NoError(t, envtest.UninstallCRDs(hub.Config(), envtest.CRDInstallOptions{Paths: []string{charts(mailboxCRDs)}}))
	notServed()
}
