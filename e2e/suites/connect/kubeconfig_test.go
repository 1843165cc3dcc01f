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

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/hub/memberclient"
)

func TestKubeconfigConnects(t *testing.T) {
	createSecretMember(t, "plain", createAccount(t, steadyPlane, "plain"))
	m := awaitConnected(t, "plain")
	createReport(t, steadyPlane, "plain-page", "plain")

	var reports v1alpha1.ClusterReportList
	require.NoError(t, m.GetCache().List(t.Context(), &reports))
	require.NotEmpty(t, reports.Items, "its cache has what the controller has seen")
	err := m.GetCache().Get(t.Context(), types.NamespacedName{Namespace: agentNamespace, Name: "x"}, &v1alpha1.MemberCluster{})
	require.Error(t, err, "nothing but the mailbox is ever watched in a member")
	require.False(t, apierrors.IsNotFound(err), "got %v", err)
	err = m.GetClient().Create(t.Context(), &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: "default"}})
	require.True(t, apierrors.IsForbidden(err), "its rights are those of the kubeconfig, got %v", err)
}

func TestKubeconfigRotation(t *testing.T) {
	first := createAccount(t, steadyPlane, "rotated")
	createSecretMember(t, "rotated", first)
	m := awaitConnected(t, "rotated")

	second := createAccount(t, steadyPlane, "rotated-too")
	putSecret(t, "rotated", second)
	require.Eventually(t, func() bool { return currentUser(t, m) == "system:serviceaccount:ot-agent:rotated-too" }, patience, tick,
		"a new token is taken up")
	same, err := memberProvider.GetMember("rotated")
	require.NoError(t, err)
	require.Same(t, m, same, "by the connection that was there")

	putSecret(t, "rotated", createAccount(t, faultyPlane, "rotated"))
	require.Eventually(t, func() bool {
		now, err := memberProvider.GetMember("rotated")
		return err == nil && now != m
	}, patience, tick, "another API server is another connection")
	require.Equal(t, faultyPlane.Config().Host, awaitConnected(t, "rotated").GetConfig().Host)
	createReport(t, faultyPlane, "rotated-page", "rotated")
}

// currentUser returns the user that a refusal of the member names.
func currentUser(t *testing.T, m *memberclient.Member) string {
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

func TestMissingCredential(t *testing.T) {
	good := createAccount(t, steadyPlane, "careless")
	createMember(t, "careless", v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "careless", Key: "kubeconfig"}})
	awaitState(t, "careless", v1alpha1.ReasonCredentialsMissing)
	require.Contains(t, connectionState("careless").Message, "Secret ot-hub/careless does not exist")

	for content, wantMessage := range map[string]string{
		"":            "has no key kubeconfig",
		"{]":          "reading the kubeconfig",
		withExec:      "needs a program",
		withTokenFile: "names a file",
	} {
		putSecret(t, "careless", []byte(content))
		require.Eventually(t, func() bool { return strings.Contains(connectionState("careless").Message, wantMessage) }, patience, tick, wantMessage)
		require.Equal(t, v1alpha1.ReasonCredentialsMissing, connectionState("careless").Reason)
	}

	putSecret(t, "careless", good)
	awaitConnected(t, "careless")
}

// TestDeletedSecret deletes the Secret of a connected member.
func TestDeletedSecret(t *testing.T) {
	good := createAccount(t, steadyPlane, "bereft")
	createSecretMember(t, "bereft", good)
	m := awaitConnected(t, "bereft")
	gone := func(wanted bool) {
		require.Eventually(t, func() bool {
			return strings.Contains(connectionState("bereft").Message, "Secret ot-hub/bereft was deleted") == wanted
		}, patience, tick, "the Secret is gone: %v", wanted)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: hubNamespace, Name: "bereft"}}
	require.NoError(t, hubPlane.Delete(t.Context(), secret))
	gone(true)
	require.Same(t, m, awaitConnected(t, "bereft"), "what was in it is still good")
	putSecret(t, "bereft", good)
	gone(false)
	require.Same(t, m, awaitConnected(t, "bereft"))

	// The connection stays for the cleanup in the member and ends with it.
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "bereft"}}
	require.NoError(t, hubPlane.Get(t.Context(), client.ObjectKeyFromObject(member), member))
	member.Finalizers = []string{v1alpha1.FinalizerMember}
	require.NoError(t, hubPlane.Update(t.Context(), member))
	require.NoError(t, hubPlane.Delete(t.Context(), secret))
	gone(true)
	require.NoError(t, hubPlane.Delete(t.Context(), member))
	require.Same(t, m, awaitConnected(t, "bereft"))
	require.NoError(t, hubPlane.Get(t.Context(), client.ObjectKeyFromObject(member), member))
	member.Finalizers = nil
	require.NoError(t, hubPlane.Update(t.Context(), member))
	require.Eventually(t, func() bool { return !connectionState("bereft").Known }, patience, tick)

	// It is not the connection to another namespace or another MemberCluster.
	createSecretMember(t, "bereft", good)
	awaitConnected(t, "bereft")
	require.NoError(t, hubPlane.Delete(t.Context(), secret))
	gone(true)
	require.NoError(t, hubPlane.Get(t.Context(), client.ObjectKeyFromObject(member), member))
	member.Spec.AgentNamespace = "elsewhere"
	require.NoError(t, hubPlane.Update(t.Context(), member))
	awaitState(t, "bereft", v1alpha1.ReasonCredentialsMissing)
}

const (
	clusterAndContext = `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
"contexts": [{"name": "c", "context": {"cluster": "c", "user": "me"}}],
"users": [{"name": "me", "user": `
	withExec      = clusterAndContext + `{"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "interactiveMode": "Never"}}}]}`
	withTokenFile = clusterAndContext + `{"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}}]}`
)

func TestUntrustedCertificate(t *testing.T) {
	good := createAccount(t, steadyPlane, "certified")
	cfg, _, err := hubclient.ParseKubeconfig(good)
	require.NoError(t, err)
	cfg.CAData = faultyPlane.Config().CAData
	createSecretMember(t, "certified", newKubeconfig(t, cfg))
	require.Contains(t, awaitState(t, "certified", v1alpha1.ReasonCertificateNotTrusted).Message, "put the CA that signed it into the kubeconfig")

	putSecret(t, "certified", good)
	awaitConnected(t, "certified")
}

func TestUnverifiedKubeconfig(t *testing.T) {
	cfg, _, err := hubclient.ParseKubeconfig(createAccount(t, steadyPlane, "unverified"))
	require.NoError(t, err)
	cfg.Insecure, cfg.CAData = true, nil
	createSecretMember(t, "unverified", newKubeconfig(t, cfg))
	require.Contains(t, awaitState(t, "unverified", v1alpha1.ReasonCredentialsMissing).Message, "set spec.insecureSkipTLSVerify of the MemberCluster")

	member := &v1alpha1.MemberCluster{}
	require.NoError(t, hubPlane.Get(t.Context(), client.ObjectKey{Name: "unverified"}, member))
	member.Spec.InsecureSkipTLSVerify = true
	require.NoError(t, hubPlane.Update(t.Context(), member))
	awaitConnected(t, "unverified")

	member.Spec.Connection = v1alpha1.MemberConnection{Pull: &v1alpha1.MemberPull{}}
	require.ErrorContains(t, hubPlane.Update(t.Context(), member), "insecureSkipTLSVerify is for kubeconfigs")
}

func TestRevokedCredential(t *testing.T) {
	t.Parallel() // an API server remembers for 10 s that a token was good
	createSecretMember(t, "revoked", createAccount(t, steadyPlane, "revoked"))
	awaitConnected(t, "revoked")

	meta := metav1.ObjectMeta{Namespace: agentNamespace, Name: "revoked"}
	require.NoError(t, steadyPlane.Delete(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}))
	require.Contains(t, awaitState(t, "revoked", v1alpha1.ReasonUnauthorized).Message, "expired or was revoked")

	putSecret(t, "revoked", createAccount(t, steadyPlane, "revoked"))
	awaitConnected(t, "revoked")
	createReport(t, steadyPlane, "revoked-page", "revoked")
}

func TestRemovedRights(t *testing.T) {
	testenv.RunInTurn(t, 4)
	createSecretMember(t, "poor", createAccount(t, steadyPlane, "poor"))
	awaitConnected(t, "poor")
	role := deleteRole(t, steadyPlane, "poor")
	require.Contains(t, awaitState(t, "poor", v1alpha1.ReasonUnauthorized).Message, "lacks a permission")
	role.ResourceVersion = ""
	require.NoError(t, steadyPlane.Create(t.Context(), role))
	awaitConnected(t, "poor")
}

func TestDeletedMember(t *testing.T) {
	createSecretMember(t, "leaving", createAccount(t, steadyPlane, "leaving"))
	awaitConnected(t, "leaving")
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "leaving"}}
	require.NoError(t, hubPlane.Get(t.Context(), client.ObjectKeyFromObject(member), member))
	member.Finalizers = []string{v1alpha1.FinalizerMember}
	require.NoError(t, hubPlane.Update(t.Context(), member))
	require.NoError(t, hubPlane.Delete(t.Context(), member))

	putSecret(t, "leaving", createAccount(t, faultyPlane, "leaving"))
	require.Eventually(t, func() bool {
		m, err := memberProvider.GetMember("leaving")
		return err == nil && m.GetConfig().Host == faultyPlane.Config().Host
	}, patience, tick, "whoever cleans up in it can reach it until then")

	require.NoError(t, hubPlane.Get(t.Context(), client.ObjectKeyFromObject(member), member))
	member.Finalizers = nil
	require.NoError(t, hubPlane.Update(t.Context(), member))
	require.Eventually(t, func() bool { return !connectionState("leaving").Known }, patience, tick)
	_, err := memberProvider.GetMember("leaving")
	require.Error(t, err)
}

// TestMailboxCRDsRemovedAndRestored makes the hub's own cluster a member, installs the
// agent's chart after it has joined, and uninstalls it again.
func TestMailboxCRDsRemovedAndRestored(t *testing.T) {
	testenv.RunInTurn(t, 5)
	createSecretMember(t, "itself", createAccount(t, hubPlane, "itself"))
	notServed := func() {
		require.Eventually(t, func() bool {
			_, err := memberProvider.GetMember("itself")
			return err != nil && strings.Contains(connectionState("itself").Message, "install chart ot-agent there")
		}, patience, tick, "there is nothing to watch")
		require.True(t, connectionState("itself").Reachable)
	}
	notServed()
	require.NoError(t, installCRDs(mailboxCRDs)(t.Context(), hubPlane.Config()))
	awaitConnected(t, "itself")
	createReport(t, hubPlane, "itself-page", "itself")

	require.NoError(t, envtest.UninstallCRDs(hubPlane.Config(), envtest.CRDInstallOptions{Paths: []string{chartPath(mailboxCRDs)}}))
	notServed()
}
