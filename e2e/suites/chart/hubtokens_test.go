//go:build linux

package chart_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const hubTokensDenied = "ValidatingAdmissionPolicy 'ot-agent-hub-tokens' with binding 'ot-agent-hub-tokens' denied request: the hub may request tokens "

// TestHubTokensAreBounded: the hub's account in a member cannot request more than it has, even
// if RBAC lets it request tokens of every account.
func TestHubTokensAreBounded(t *testing.T) {
	for _, object := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: "ot-hub"}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: "another"}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "ot-hub"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: "ot-hub-access"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: "another"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "ot-hub-access"}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "all-tokens"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, Verbs: []string{"create"}}}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "all-tokens"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "all-tokens"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: agentNamespace, Name: "ot-hub"}, {Kind: rbacv1.ServiceAccountKind, Namespace: agentNamespace, Name: "another"}},
		},
	} {
		require.NoError(t, adminClient.Create(t.Context(), object))
		t.Cleanup(func() { assert.NoError(t, client.IgnoreNotFound(adminClient.Delete(context.Background(), object))) })
	}
	request := func(c client.Client, namespace, name, bound string, life time.Duration, audiences ...string) (string, error) {
		r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(life / time.Second)), Audiences: audiences}}
		if bound != "" {
			r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: bound}
		}
		err := c.SubResource("token").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}, r)
		return r.Status.Token, err
	}
	clientOf := func(namespace, name string) client.Client {
		cfg := rest.CopyConfig(serverConfig)
		cfg.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":" + name, Groups: []string{"system:serviceaccounts"}}
		return newClient(t, cfg)
	}
	const week, decades = 7 * 24 * time.Hour, 50 * 365 * 24 * time.Hour
	hub := clientOf(agentNamespace, "ot-hub")
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		_, err := request(hub, agentNamespace, "ot-hub", "", week)
		assert.ErrorContains(check, err, hubTokensDenied)
		_, err = request(hub, agentNamespace, "ot-hub", "ot-hub-access", week)
		assert.NoError(check, err)
	}, policyPropagationTimeout, 20*time.Millisecond)

	for name, tt := range map[string]struct {
		namespace, account, bound string
		life                      time.Duration
		audiences                 []string
		want                      string
	}{
		"for an hour":         {agentNamespace, "ot-hub", "ot-hub-access", time.Hour, nil, ""},
		"for this API server": {agentNamespace, "ot-hub", "ot-hub-access", week, []string{"https://kubernetes.default.svc"}, ""},
		"a second too long":   {agentNamespace, "ot-hub", "ot-hub-access", week + time.Second, nil, hubTokensDenied + "for 168h at most"},
		"for 50 years":        {agentNamespace, "ot-hub", "ot-hub-access", decades, nil, hubTokensDenied + "for 168h at most"},
		"for another service": {agentNamespace, "ot-hub", "ot-hub-access", week, []string{"vault"}, hubTokensDenied + "for this API server only, and vault is not in hub.serviceAccount.audiences"},
		"for both":            {agentNamespace, "ot-hub", "ot-hub-access", week, []string{"https://kubernetes.default.svc", "vault"}, hubTokensDenied + "for this API server only"},
		"bound to nothing":    {agentNamespace, "ot-hub", "", week, nil, hubTokensDenied + "only that are bound to Secret ot-hub-access"},
		"bound to another":    {agentNamespace, "ot-hub", "another", week, nil, hubTokensDenied + "only that are bound to Secret ot-hub-access"},
		"of another account":  {agentNamespace, "another", "ot-hub-access", week, nil, hubTokensDenied + "of its own ServiceAccount only, not of " + agentNamespace + "/another"},
		"of a namesake":       {"kube-system", "ot-hub", "ot-hub-access", week, nil, hubTokensDenied + "of its own ServiceAccount only, not of kube-system/ot-hub"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := request(hub, tt.namespace, tt.account, tt.bound, tt.life, tt.audiences...)
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.want)
			require.True(t, apierrors.IsForbidden(err))
		})
	}

	// Others are not limited.
	_, err := request(clientOf(agentNamespace, "another"), agentNamespace, "another", "", decades, "vault")
	require.NoError(t, err)
	_, err = request(adminClient, agentNamespace, "ot-hub", "", time.Hour)
	require.NoError(t, err)

	// The deletion of the Secret ends every token that the hub could get.
	token, err := request(hub, agentNamespace, "ot-hub", "ot-hub-access", week)
	require.NoError(t, err)
	cfg := rest.AnonymousClientConfig(serverConfig)
	cfg.BearerToken = token
	holder := newClient(t, cfg)
	require.NoError(t, holder.Create(t.Context(), &authenticationv1.SelfSubjectReview{}))
	require.NoError(t, adminClient.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: "ot-hub-access"}}))
	require.Eventually(t, func() bool {
		return apierrors.IsUnauthorized(holder.Create(t.Context(), &authenticationv1.SelfSubjectReview{}))
	}, policyPropagationTimeout, 20*time.Millisecond)
}
