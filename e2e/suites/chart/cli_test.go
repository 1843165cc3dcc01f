//go:build linux

package chart_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const cliTokensDenied = "ValidatingAdmissionPolicy 'ot-hub-cli-tokens' with binding 'ot-hub-cli-tokens' denied request: a token of ot-hub-cli is "

// TestReadersOfTheCLICannotGetMore: those in cli.readers find the hub, reach it and have a
// token that reads, and neither they nor that token get anything else.
func TestReadersOfTheCLICannotGetMore(t *testing.T) {
	createNamespaces(t, hubNamespace)
	rendered := renderHub(t, hubNamespace, map[string]any{"cli": map[string]any{"readers": []any{map[string]any{"kind": "User", "name": "anna", "apiGroup": "rbac.authorization.k8s.io"}}}})
	for _, key := range []string{
		"ServiceAccount " + hubNamespace + "/ot-hub-cli", "ClusterRoleBinding ot-hub-cli", "Role " + hubNamespace + "/ot-hub-cli", "RoleBinding " + hubNamespace + "/ot-hub-cli",
		"ClusterRole ot-hub-reader", "ValidatingAdmissionPolicy ot-hub-cli-tokens", "ValidatingAdmissionPolicyBinding ot-hub-cli-tokens",
	} {
		require.Contains(t, rendered, key)
		createForAttempt(t, rendered[key].DeepCopy())
	}
	anna := impersonate(t, "anna")
	token := func(account string, life time.Duration, audiences ...string) (string, error) {
		r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(life / time.Second)), Audiences: audiences}}
		err := anna.SubResource("token").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: hubNamespace, Name: account}}, r)
		return r.Status.Token, err
	}
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		_, err := token("ot-hub-cli", 48*time.Hour)
		assert.ErrorContains(check, err, cliTokensDenied+"valid for 1h at most")
	}, policyPropagationTimeout, 20*time.Millisecond)
	_, err := token("ot-hub-cli", 10*time.Minute, "vault")
	require.ErrorContains(t, err, cliTokensDenied+"for this API server only, and vault is not in cli.tokenAudiences")
	_, err = token("ot-hub", 10*time.Minute)
	require.ErrorContains(t, err, "forbidden")
	bearer, err := token("ot-hub-cli", 10*time.Minute)
	require.NoError(t, err)

	for name, tt := range map[string]struct {
		user string
		spec authorizationv1.SubjectAccessReviewSpec
		want bool
	}{
		"finds the hub":             {"anna", resourceAccess("list", "coordination.k8s.io", "leases", "", ""), true},
		"reaches it by websocket":   {"anna", resourceAccess("get", "", "pods", "portforward", "ot-hub-0"), true},
		"reaches it by SPDY":        {"anna", resourceAccess("create", "", "pods", "portforward", "ot-hub-0"), true},
		"does not run in its Pods":  {"anna", resourceAccess("create", "", "pods", "exec", "ot-hub-0"), false},
		"does not change Leases":    {"anna", resourceAccess("update", "coordination.k8s.io", "leases", "", "ot-hub"), false},
		"has no tokens of the hub":  {"anna", resourceAccess("create", "", "serviceaccounts", "token", "ot-hub"), false},
		"reads no Secrets":          {"anna", resourceAccess("get", "", "secrets", "", "any"), false},
		"the account reads":         {cliAccount, pathAccess("get", "/fleet/v1/summary"), true},
		"the account reads events":  {cliAccount, pathAccess("get", "/fleet/v1/events"), true},
		"the account posts nothing": {cliAccount, pathAccess("post", "/fleet/v1/blastradius"), false},
		"the account lists nothing": {cliAccount, resourceAccess("list", "coordination.k8s.io", "leases", "", ""), false},
		"the account has no tokens": {cliAccount, resourceAccess("create", "", "serviceaccounts", "token", "ot-hub-cli"), false},
		"nor members":               {cliAccount, resourceAccess("list", "pelotech.ot", "memberclusters", "", ""), false},
	} {
		t.Run(name, func(t *testing.T) {
			review := &authorizationv1.SubjectAccessReview{Spec: tt.spec}
			review.Spec.User = tt.user
			assert.True(t, testenv.AwaitCondition(t, func() bool {
				review.Status = authorizationv1.SubjectAccessReviewStatus{}
				require.NoError(t, adminClient.Create(t.Context(), review))
				return review.Status.Allowed == tt.want
			}))
		})
	}
	cfg := rest.AnonymousClientConfig(serverConfig)
	cfg.BearerToken = bearer
	reader := newClient(t, cfg)
	require.ErrorContains(t, reader.List(t.Context(), &corev1.SecretList{}, client.InNamespace(hubNamespace)), `User "`+cliAccount+`" cannot list resource "secrets"`)
}

const cliAccount = "system:serviceaccount:" + hubNamespace + ":ot-hub-cli"

func impersonate(t *testing.T, user string) client.Client {
	t.Helper()
	cfg := rest.CopyConfig(serverConfig)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user}
	return newClient(t, cfg)
}

func resourceAccess(verb, group, resource, sub, name string) authorizationv1.SubjectAccessReviewSpec {
	return authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
		Namespace: hubNamespace, Verb: verb, Group: group, Resource: resource, Subresource: sub, Name: name,
	}}
}

func pathAccess(verb, path string) authorizationv1.SubjectAccessReviewSpec {
	return authorizationv1.SubjectAccessReviewSpec{NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: verb}}
}
