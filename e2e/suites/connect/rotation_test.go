//go:build linux

package connect

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/chart"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/hub/controllers/connection"
	"github.com/pelotech/ot-fleet/hub/credential"
)

const rotationNamespace = "agent-of-rotated"

// applyHubAccount applies what chart ot-agent has for the hub in the member: the account, its
// Secret and the policy of its tokens.
func applyHubAccount(t *testing.T, values map[string]any) {
	t.Helper()
	createNamespace(t, steadyPlane, rotationNamespace)
	serviceAccount := map[string]any{"create": true}
	for key, value := range values {
		serviceAccount[key] = value
	}
	objects, err := chart.Render(t.Context(), "charts/ot-agent", "ot-agent", rotationNamespace, map[string]any{"hub": map[string]any{"serviceAccount": serviceAccount}})
	require.NoError(t, err)
	for _, object := range objects {
		if !slices.Contains([]string{connection.HubAccount, credential.AnchorSecret, "ot-agent-hub-tokens"}, object.GetName()) {
			continue
		}
		require.NoError(t, steadyPlane.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("helm"), client.ForceOwnership))
		t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(steadyPlane.Delete(context.Background(), object))) })
	}
}

// bootstrapKubeconfig has a token of the hub's account that is bound to a Secret of its own.
func bootstrapKubeconfig(t *testing.T, bound string) []byte {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: rotationNamespace, Name: bound}}
	if err := steadyPlane.Create(t.Context(), secret); !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(steadyPlane.Delete(context.Background(), secret))) })
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To[int64](24 * 3600), BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: bound},
	}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: rotationNamespace, Name: connection.HubAccount}}
	require.NoError(t, steadyPlane.SubResource("token").Create(t.Context(), account, request))
	cfg := rest.AnonymousClientConfig(steadyPlane.Config())
	cfg.BearerToken = request.Status.Token
	return newKubeconfig(t, cfg)
}

func createRotatedMember(t *testing.T, name string, kubeconfig []byte) *v1alpha1.MemberCluster {
	t.Helper()
	putSecret(t, name, kubeconfig)
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.MemberClusterSpec{
		Connection: v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: name, Key: "kubeconfig"}}, AgentNamespace: rotationNamespace,
	}}
	require.NoError(t, hubPlane.Create(t.Context(), member))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(hubPlane.Delete(context.Background(), member))) })
	return member
}

func awaitRotation(t *testing.T, member *v1alpha1.MemberCluster, reason string, words ...string) (condition *metav1.Condition) {
	t.Helper()
	// A request that timed out has the same reason before.
	require.Eventually(t, func() bool {
		condition = rotations.ForMember(member)
		return condition != nil && condition.Reason == reason && !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(condition.Message, word) })
	}, patience, tick, "CredentialRotated has reason %s and says %q", reason, words)
	return condition
}

// awaitFirstToken waits for the token that replaces a given one.
func awaitFirstToken(t *testing.T, member string) string {
	t.Helper()
	require.Eventually(t, func() bool {
		return hubPlane.Get(t.Context(), client.ObjectKey{Namespace: hubNamespace, Name: connection.TokenSecretName(member)}, &corev1.Secret{}) == nil
	}, patience, tick, "the given token of %s is replaced", member)
	cfg, _ := getMemberToken(t, member)
	return cfg.BearerToken
}

// reviewToken returns whom the member takes the bearer of a token for.
func reviewToken(t *testing.T, token string) (string, error) {
	t.Helper()
	cfg := rest.AnonymousClientConfig(steadyPlane.Config())
	cfg.BearerToken = token
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	require.NoError(t, err)
	review := &authenticationv1.SelfSubjectReview{}
	err = c.Create(t.Context(), review)
	return review.Status.UserInfo.Username, err
}

// TestGivenTokenIsReplaced: the hub works with its own token when the given one has ended,
// leaves the given Secret alone, and is cut off at once by the deletion of one Secret.
func TestGivenTokenIsReplaced(t *testing.T) {
	applyHubAccount(t, nil)
	given := bootstrapKubeconfig(t, "bootstrap")
	member := createRotatedMember(t, "rotated", given)
	m := awaitConnected(t, "rotated")
	first := awaitFirstToken(t, "rotated")
	describe := credential.Describe(first)
	require.Equal(t, connection.HubAccount, describe.Account)
	require.WithinDuration(t, time.Now().Add(7*24*time.Hour), describe.Expires, time.Hour)
	require.Contains(t, awaitRotation(t, member, v1alpha1.ReasonRotated).Message, "expires at")

	// The given token ends; rotation and connection go on.
	require.NoError(t, steadyPlane.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: rotationNamespace, Name: "bootstrap"}}))
	cfg, _, err := hubclient.ParseKubeconfig(given)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // an API server remembers for 10 s that a token was good
		_, err := reviewToken(t, cfg.BearerToken)
		return apierrors.IsUnauthorized(err)
	}, patience, tick)
	first = awaitFirstToken(t, "rotated")
	second := awaitRenewed(t, "rotated", first)
	third := awaitRenewed(t, "rotated", second)
	user, err := reviewToken(t, second)
	require.NoError(t, err, "a replaced token stays valid")
	require.Equal(t, "system:serviceaccount:"+rotationNamespace+":ot-hub", user)
	now, err := memberProvider.GetMember("rotated")
	require.NoError(t, err)
	require.Same(t, m, now, "another token needs no new connection")
	require.NoError(t, now.GetClient().List(t.Context(), &v1alpha1.ClusterPlanList{}, client.InNamespace(rotationNamespace)))

	// A typing error that is saved and corrected, with a comment, costs no token.
	putSecret(t, "rotated", []byte("clusters: [\n"))
	awaitState(t, "rotated", v1alpha1.ReasonCredentialsMissing)
	require.Contains(t, awaitRotation(t, member, v1alpha1.ReasonNotRotated).Message, "correct it")
	putSecret(t, "rotated", append([]byte("# corrected\n"), given...))
	awaitConnected(t, "rotated")
	awaitRotation(t, member, v1alpha1.ReasonRotated)
	putSecret(t, "rotated", given)

	stored := &corev1.Secret{}
	require.NoError(t, hubPlane.Get(t.Context(), client.ObjectKey{Namespace: hubNamespace, Name: "rotated"}, stored))
	require.Equal(t, given, stored.Data["kubeconfig"], "the given Secret is another tool's")

	// Revoked in the member: every token ends, and none can be requested.
	require.NoError(t, steadyPlane.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: rotationNamespace, Name: credential.AnchorSecret}}))
	for _, token := range []string{first, second, third} {
		require.Eventually(t, func() bool {
			_, err := reviewToken(t, token)
			return apierrors.IsUnauthorized(err)
		}, patience, tick)
	}
	awaitState(t, "rotated", v1alpha1.ReasonUnauthorized)
	require.Contains(t, awaitRotation(t, member, v1alpha1.ReasonCredentialRefused).Message, "run kubectl ot join push rotated --member CONTEXT again")

	// Joined again: another kubeconfig counts at once.
	applyHubAccount(t, nil)
	putSecret(t, "rotated", bootstrapKubeconfig(t, "bootstrap"))
	awaitConnected(t, "rotated")
	awaitRotation(t, member, v1alpha1.ReasonRotated)

	// Dropped on the hub.
	putSecret(t, "rotated", []byte{})
	require.Eventually(t, func() bool {
		err := hubPlane.Get(t.Context(), client.ObjectKey{Namespace: hubNamespace, Name: connection.TokenSecretName("rotated")}, &corev1.Secret{})
		return apierrors.IsNotFound(err)
	}, patience, tick, "the hub deletes its token")
	awaitState(t, "rotated", v1alpha1.ReasonCredentialsMissing)
	awaitRotation(t, member, v1alpha1.ReasonNotRotated)
}

// TestFailedRotationKeepsTheToken: the member refuses another token, or the hub cannot store
// it; the one in use goes on, and is replaced when the cause is gone.
func TestFailedRotationKeepsTheToken(t *testing.T) {
	testenv.RunInTurn(t, 1)
	applyHubAccount(t, nil)
	member := createRotatedMember(t, "stuck", bootstrapKubeconfig(t, "bootstrap-of-stuck"))
	m := awaitConnected(t, "stuck")
	awaitFirstToken(t, "stuck")
	stillConnected := func() {
		t.Helper()
		now, err := memberProvider.GetMember("stuck")
		require.NoError(t, err)
		require.Same(t, m, now)
		require.NoError(t, now.GetClient().List(t.Context(), &v1alpha1.ClusterPlanList{}, client.InNamespace(rotationNamespace)))
	}

	// The policy refuses: the token in use is kept, and the condition quotes the policy.
	applyHubAccount(t, map[string]any{"audiences": []any{"https://elsewhere.example"}})
	awaitRotation(t, member, v1alpha1.ReasonRotationFailed, "add it there", "the one in use expires at")
	cfg, _ := getMemberToken(t, "stuck")
	stillConnected()
	applyHubAccount(t, nil)
	awaitRenewed(t, "stuck", cfg.BearerToken)
	awaitRotation(t, member, v1alpha1.ReasonRotated)

	// A member that allows less gets less.
	applyHubAccount(t, map[string]any{"maxTokenLife": "24h"})
	require.Eventually(t, func() bool {
		cfg, _ := getMemberToken(t, "stuck")
		return time.Until(credential.Describe(cfg.BearerToken).Expires) <= 24*time.Hour
	}, patience, tick)

	// The hub cannot store what it got.
	role := &rbacv1.Role{}
	key := client.ObjectKey{Namespace: hubNamespace, Name: "ot-hub"}
	require.NoError(t, hubPlane.Get(t.Context(), key, role), "the Role of the hub's chart")
	all := role.DeepCopy().Rules
	restore := func() {
		require.NoError(t, hubPlane.Get(context.Background(), key, role))
		role.Rules = all
		require.NoError(t, hubPlane.Update(context.Background(), role))
	}
	t.Cleanup(restore)
	role.Rules = slices.Clone(all)
	for i, rule := range role.Rules {
		if slices.Contains(rule.Resources, "secrets") {
			rule.Verbs = []string{"get", "list", "watch"}
			role.Rules[i] = rule
		}
	}
	require.NoError(t, hubPlane.Update(t.Context(), role))
	awaitRotation(t, member, v1alpha1.ReasonRotationFailed, "could not store it in Secret ot-hub/ot-member-stuck-token: Forbidden")
	cfg, _ = getMemberToken(t, "stuck")
	_, err := reviewToken(t, cfg.BearerToken)
	require.NoError(t, err)
	stillConnected()
	restore()
	awaitRenewed(t, "stuck", cfg.BearerToken)
	awaitRotation(t, member, v1alpha1.ReasonRotated)
	stillConnected()
}

// TestOlderChartRotatesUnbound: a member without the Secret and the policy gets tokens that
// are bound to the account only, and other credentials are left alone.
func TestOlderChartRotatesUnbound(t *testing.T) {
	testenv.RunInTurn(t, 0)
	applyHubAccount(t, nil)
	given := bootstrapKubeconfig(t, "bootstrap-of-older")
	policy := &unstructured.Unstructured{}
	policy.SetAPIVersion("admissionregistration.k8s.io/v1")
	policy.SetKind("ValidatingAdmissionPolicyBinding")
	policy.SetName("ot-agent-hub-tokens")
	for _, object := range []client.Object{policy, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: rotationNamespace, Name: credential.AnchorSecret}}} {
		require.NoError(t, steadyPlane.Delete(t.Context(), object))
	}
	createRotatedMember(t, "older", given)
	awaitConnected(t, "older")
	awaitRenewed(t, "older", awaitFirstToken(t, "older"))

	stranger := createAccount(t, steadyPlane, "stranger")
	foreign := createRotatedMember(t, "foreign", stranger)
	awaitRotation(t, foreign, v1alpha1.ReasonNotRotated, "a token of ServiceAccount "+agentNamespace+"/stranger")
	err := hubPlane.Get(t.Context(), client.ObjectKey{Namespace: hubNamespace, Name: connection.TokenSecretName("foreign")}, &corev1.Secret{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}
