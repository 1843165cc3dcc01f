//go:build linux

package registration_test

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// createLegacyToken creates a token of the hub's account that never expires, in a Secret of the
// member that also keeps it valid.
func createLegacyToken(t *testing.T, s *testFleet, name string) (token string) {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: program.AgentNamespace, Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: "ot-hub"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}
	require.NoError(t, s.member.Create(t.Context(), secret))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(s.member.Delete(context.Background(), secret))) })
	awaitCondition(t, func() bool {
		require.NoError(t, s.member.Get(t.Context(), client.ObjectKeyFromObject(secret), secret))
		token = string(secret.Data[corev1.ServiceAccountTokenKey])
		return token != ""
	}, "the token controller has put no token into %s", name)
	return token
}

// TestRotationSurvivesHubKilledAroundEachWrite: a hub that is killed before or after it requests
// or stores its own token leaves a token that works, and the next hub gets to the same end.
func TestRotationSurvivesHubKilledAroundEachWrite(t *testing.T) {
	s := shared
	const name, legacy = "rotating", "legacy-of-rotating"
	token := createLegacyToken(t, s, legacy)
	proxy, err := faults.StartTLSProxy(s.member.ControlPlane.Config())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	cfg := &rest.Config{BearerToken: token}
	cfg.Host, cfg.CAData = proxy.Endpoint()
	kubeconfig, err := controlplane.Kubeconfig(cfg)
	require.NoError(t, err)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: name}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
	shared.CreateForTest(t, secret)

	tokenSecret := client.ObjectKey{Namespace: program.HubNamespace, Name: "ot-member-" + name + "-token"}
	killer := startProxiedHub(t, faults.BeforeAndAfter(
		faults.FatalWrite{Write: "request of a token", Matches: func(w faults.Write) bool {
			return w.Method == http.MethodPost && strings.HasSuffix(w.Path, "/serviceaccounts/ot-hub/token")
		}},
		faults.FatalWrite{Write: "write of the token", Matches: func(w faults.Write) bool {
			resource, _, _ := w.Target()
			return resource == "secrets" && bytes.Contains(w.Body, []byte(tokenSecret.Name))
		}},
	))
	killer.Watch(t, proxy)
	shared.CreateForTest(t, &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.MemberClusterSpec{
		Connection: v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: name}},
	}})
	rotation := func() metav1.Condition {
		c := meta.FindStatusCondition(getMember(t, name).Status.Conditions, v1alpha1.ConditionCredentialRotated)
		if c == nil {
			return metav1.Condition{}
		}
		return *c
	}
	review := func(token string) (string, error) {
		t.Helper()
		cfg := rest.AnonymousClientConfig(s.member.ControlPlane.Config())
		cfg.BearerToken = token
		c, err := client.New(cfg, client.Options{Scheme: s.Scheme()})
		require.NoError(t, err)
		review := &authenticationv1.SelfSubjectReview{}
		err = c.Create(t.Context(), review)
		return review.Status.UserInfo.Username, err
	}
	user := func(token string) string {
		t.Helper()
		name, err := review(token)
		require.NoError(t, err)
		return name
	}
	killer.AwaitCondition(t, "the hub's own token", func() bool {
		assert.Equal(t, "system:serviceaccount:ot-agent:ot-hub", user(token), "the token in use works at each moment")
		reachable := meta.IsStatusConditionTrue(getMember(t, name).Status.Conditions, v1alpha1.ConditionReachable)
		return len(killer.Remaining()) == 0 && rotation().Reason == v1alpha1.ReasonLegacyToken && reachable
	})
	t.Logf("killed %q", killer.Killed())
	assert.Contains(t, rotation().Message, "kubectl --namespace ot-agent delete secret "+legacy)

	stored := &corev1.Secret{}
	require.NoError(t, s.Get(t.Context(), tokenSecret, stored))
	own, err := clientcmd.RESTConfigFromKubeConfig(stored.Data["kubeconfig"])
	require.NoError(t, err)
	assert.NotEqual(t, token, own.BearerToken)
	assert.Equal(t, "system:serviceaccount:ot-agent:ot-hub", user(own.BearerToken))
	require.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(secret), secret))
	assert.Equal(t, kubeconfig, secret.Data["kubeconfig"], "what the hub was given stays")

	// The person deletes what never expires; a hub that starts then finds it gone.
	require.NoError(t, s.member.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: program.AgentNamespace, Name: legacy}}))
	awaitCondition(t, func() bool {
		_, err := review(token)
		return apierrors.IsUnauthorized(err)
	}, "the legacy token stays valid")
	shared.Hub.Kill()
	<-shared.Hub.Done()
	killer.AwaitCondition(t, "condition Rotated", func() bool {
		return rotation().Reason == v1alpha1.ReasonRotated && meta.IsStatusConditionTrue(getMember(t, name).Status.Conditions, v1alpha1.ConditionReachable)
	})
	again := &corev1.Secret{}
	require.NoError(t, s.Get(t.Context(), tokenSecret, again))
	assert.Equal(t, stored.ResourceVersion, again.ResourceVersion, "a valid token is kept")
}
