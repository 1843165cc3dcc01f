package registration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/controllers/mailbox"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// newTestReconciler returns a reconciler whose requests funcs intercepts.
func newTestReconciler(t *testing.T, funcs interceptor.Funcs, secrets ...client.Object) (*Reconciler, *prometheus.Registry) {
	t.Helper()
	kubeSystem := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: ownClusterUID}}
	c := fake.NewClientBuilder().WithScheme(hubclient.Scheme).WithObjects(append(secrets, kubeSystem)...).WithInterceptorFuncs(funcs).Build()
	registry := prometheus.NewRegistry()
	counted := metrics.NewPullMode(registry)
	return &Reconciler{
		Client: c, Live: c, Cluster: apidiscovery.NewClusterIdentity(c), Metrics: counted, Namespace: "ot-agent",
		Syncer: &mailbox.Syncer{Leadership: &mailbox.LeadershipCheck{}, Metrics: counted}, OnConditionChange: func() {},
	}, registry
}

func newSecret(name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: name}, Data: data}
}

func metricValue(t *testing.T, r *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := r.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

func TestUnstorableSecretIsReported(t *testing.T) {
	refuse := true
	refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, registration.CredentialSecret, errors.New("a quota"))
	joinSecret := newSecret(registration.JoinSecret, map[string][]byte{registration.KubeconfigKey: newKubeconfig(t, "ot-member-a", newToken("join-1", testStart, time.Hour))})
	r, registry := newTestReconciler(t, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if refuse {
				return refusal
			}
			return c.Create(ctx, o, options...)
		},
	}, joinSecret)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := r.Reconcile(ctx, ctrl.Request{})
	require.Error(t, err, "it is retried")
	c := r.Condition()
	require.NotNil(t, c)
	require.Equal(t, v1alpha1.ReasonCredentialNotStored, c.Reason)
	require.Equal(t, metav1.ConditionFalse, c.Status)
	require.Contains(t, c.Message, "a quota")
	require.Equal(t, 1, int(metricValue(t, registry, "ot_agent_hub_credential_store_failures_total")))

	refuse = false
	cancel() // the hub is not asked
	_, err = r.Reconcile(ctx, ctrl.Request{})
	require.NoError(t, err)
	require.NotEqual(t, v1alpha1.ReasonCredentialNotStored, r.Condition().Reason)
	stored, _, err := r.readStoredCredential(t.Context())
	require.NoError(t, err)
	require.NotNil(t, stored.key)
}

// The connection outlasts a Secret that cannot be read.
func TestUnreadableSecretIsReported(t *testing.T) {
	current, err := parseCredential(newKubeconfig(t, "ot-member-a", newToken("agent-1", testStart, time.Hour)))
	require.NoError(t, err)
	current.receivedAt = time.Now()
	data, err := storedCredential{clusterUID: ownClusterUID, key: newKey(t), credential: &current}.secretData()
	require.NoError(t, err)
	refuse := false
	r, _ := newTestReconciler(t, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, isSecret := o.(*corev1.Secret); isSecret && refuse {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, key.Name, errors.New("no role"))
			}
			return c.Get(ctx, key, o, options...)
		},
	}, newSecret(registration.CredentialSecret, data))
	_, err = r.Reconcile(t.Context(), ctrl.Request{})
	require.NoError(t, err)
	active := r.active
	require.NotNil(t, active)

	refuse = true
	_, err = r.Reconcile(t.Context(), ctrl.Request{})
	require.Error(t, err)
	require.Same(t, active, r.active)
	require.Equal(t, v1alpha1.ReasonConnecting, r.Condition().Reason)
	require.Contains(t, r.Condition().Message, "no role")
}

// The SyncLedger is refused if a message is too long, and a ledger that cannot be written
// stops everything.
func TestConditionMessageFitsLedger(t *testing.T) {
	long := strings.Repeat("ä.", 40_000)
	joinSecret := newSecret(registration.JoinSecret, nil)
	access := registration.HubAccess{Server: "https://" + long, Namespace: long, Token: newToken("join-1", testStart, time.Hour)}
	kubeconfig, err := access.MarshalKubeconfig()
	require.NoError(t, err)
	joinSecret.Data = map[string][]byte{registration.KubeconfigKey: kubeconfig}
	r, _ := newTestReconciler(t, interceptor.Funcs{}, joinSecret)
	_, err = r.Reconcile(t.Context(), ctrl.Request{})
	require.NoError(t, err)
	require.NotNil(t, r.Condition())
	require.Less(t, len(r.Condition().Message), 4096)

	r.publishStatus(t.Context(), decision{credentialProblem: long})
	require.Less(t, len(r.Condition().Message), 4096)
	require.Equal(t, r.Condition().Message, strings.ToValidUTF8(r.Condition().Message, "?"))
}

func TestNextTokenLifeIsHalvedWhenForbidden(t *testing.T) {
	for name, tt := range map[string]struct {
		current, allowed time.Duration
		want             time.Duration // 0: none
	}{
		"as long as before":    {168 * time.Hour, 168 * time.Hour, 168 * time.Hour},
		"longer than before":   {24 * time.Hour, 168 * time.Hour, 24 * time.Hour},
		"shorter than before":  {168 * time.Hour, 24 * time.Hour, 21 * time.Hour},
		"the minimum":          {168 * time.Hour, registration.MinTokenLife, registration.MinTokenLife},
		"forbidden altogether": {168 * time.Hour, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var got time.Duration
			requests := 0
			hub := fake.NewClientBuilder().WithScheme(hubclient.Scheme).WithInterceptorFuncs(interceptor.Funcs{
				SubResourceCreate: func(_ context.Context, _ client.Client, _ string, _, sub client.Object, _ ...client.SubResourceCreateOption) error {
					requests++
					request := sub.(*authenticationv1.TokenRequest)
					if lifetime := time.Duration(*request.Spec.ExpirationSeconds) * time.Second; lifetime <= tt.allowed {
						got, request.Status.Token = lifetime, "next"
						return nil
					}
					return apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts/token"}, registration.AgentAccount, errors.New("too long"))
				},
			}).Build()
			token, err := requestNextToken(t.Context(), hub, credential{Credential: mailbox.Credential{Claims: registration.TokenClaims{Issued: testStart, Expires: testStart.Add(tt.current)}}})
			require.Equal(t, tt.want, got)
			require.Equal(t, tt.want > 0, err == nil)
			require.Equal(t, tt.want > 0, token != "")
			require.LessOrEqual(t, requests, 12)
		})
	}
}
