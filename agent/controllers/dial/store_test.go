package dial

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
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// newTestReconciler is an agent whose API server does with its Secrets what the test says.
func newTestReconciler(t *testing.T, funcs interceptor.Funcs, secrets ...client.Object) (*Reconciler, *prometheus.Registry) {
	t.Helper()
	kubeSystem := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: ownClusterUID}}
	c := fake.NewClientBuilder().WithScheme(hubclient.Scheme).WithObjects(append(secrets, kubeSystem)...).WithInterceptorFuncs(funcs).Build()
	registry := prometheus.NewRegistry()
	counted := metrics.NewPullMode(registry)
	return &Reconciler{
		Client: c, Live: c, Cluster: apidiscovery.NewClusterIdentity(c), Metrics: counted, Namespace: "ot-agent",
		Syncer: &Syncer{Leader: &LeadershipCheck{}, Metrics: counted}, OnChange: func() {},
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
	t.Fatalf("there is no metric %s", name)
	return 0
}

// Who looks at the ledger sees that Secrets are in the way, and that goes when it does.
func TestUnstorableSecretIsReported(t *testing.T) {
	refuse := true
	refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, registration.CredentialSecret, errors.New("a quota"))
	invited := newSecret(registration.JoinSecret, map[string][]byte{registration.KubeconfigKey: newKubeconfig(t, "ot-member-a", newToken("join-1", testStart, time.Hour))})
	r, registry := newTestReconciler(t, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if refuse {
				return refusal
			}
			return c.Create(ctx, o, options...)
		},
	}, invited)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := r.Reconcile(ctx, ctrl.Request{})
	require.Error(t, err, "so that it is tried again")
	c := r.Condition()
	require.NotNil(t, c)
	require.Equal(t, v1alpha1.ReasonCredentialNotStored, c.Reason)
	require.Equal(t, metav1.ConditionFalse, c.Status)
	require.Contains(t, c.Message, "a quota")
	require.Equal(t, 1, int(metricValue(t, registry, "ot_agent_hub_credential_store_failures_total")))

	refuse = false
	cancel() // it asks nobody
	_, err = r.Reconcile(ctx, ctrl.Request{})
	require.NoError(t, err)
	require.NotEqual(t, v1alpha1.ReasonCredentialNotStored, r.Condition().Reason)
	kept, _, err := r.readStoredCredential(t.Context())
	require.NoError(t, err)
	require.NotNil(t, kept.key)
}

// What cannot be read is no reason to carry nothing.
func TestUnreadableSecretIsReported(t *testing.T) {
	held, err := parseCredential(newKubeconfig(t, "ot-member-a", newToken("agent-1", testStart, time.Hour)))
	require.NoError(t, err)
	held.receivedAt = time.Now()
	data, err := storedCredential{clusterUID: ownClusterUID, key: newKey(t), credential: &held}.secretData()
	require.NoError(t, err)
	refuse := false
	r, _ := newTestReconciler(t, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, is := o.(*corev1.Secret); is && refuse {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, key.Name, errors.New("no role"))
			}
			return c.Get(ctx, key, o, options...)
		},
	}, newSecret(registration.CredentialSecret, data))
	_, err = r.Reconcile(t.Context(), ctrl.Request{})
	require.NoError(t, err)
	carrying := r.Syncer.currentSession
	require.NotNil(t, carrying)

	refuse = true
	_, err = r.Reconcile(t.Context(), ctrl.Request{})
	require.Error(t, err)
	require.Same(t, carrying, r.Syncer.currentSession)
	require.Equal(t, v1alpha1.ReasonConnecting, r.Condition().Reason)
	require.Contains(t, r.Condition().Message, "no role")
}

// A ledger that cannot be written stops everything: what is in a Secret must not have
// its API server refuse it.
func TestConditionMessageFitsLedger(t *testing.T) {
	long := strings.Repeat("ä.", 40_000)
	invited := newSecret(registration.JoinSecret, nil)
	access := registration.HubAccess{Server: "https://" + long, Namespace: long, Token: newToken("join-1", testStart, time.Hour)}
	kubeconfig, err := access.MarshalKubeconfig()
	require.NoError(t, err)
	invited.Data = map[string][]byte{registration.KubeconfigKey: kubeconfig}
	r, _ := newTestReconciler(t, interceptor.Funcs{}, invited)
	_, err = r.Reconcile(t.Context(), ctrl.Request{})
	require.NoError(t, err)
	require.NotNil(t, r.Condition())
	require.Less(t, len(r.Condition().Message), 4096)

	r.publishStatus(t.Context(), decision{credentialProblem: long})
	require.Less(t, len(r.Condition().Message), 4096)
	require.Equal(t, r.Condition().Message, strings.ToValidUTF8(r.Condition().Message, "?"))
}

// Where the hub allows a token less time than the one before had, it gets that.
func TestNextTokenLifeIsHalvedWhenForbidden(t *testing.T) {
	for name, tt := range map[string]struct {
		had, may time.Duration
		want     time.Duration // 0: none
	}{
		"as long as before":        {168 * time.Hour, 168 * time.Hour, 168 * time.Hour},
		"longer than before":       {24 * time.Hour, 168 * time.Hour, 24 * time.Hour},
		"shorter than before":      {168 * time.Hour, 24 * time.Hour, 21 * time.Hour},
		"no more than there is":    {168 * time.Hour, registration.MinTokenLife, registration.MinTokenLife},
		"nothing, by another role": {168 * time.Hour, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var got time.Duration
			asked := 0
			hub := fake.NewClientBuilder().WithScheme(hubclient.Scheme).WithInterceptorFuncs(interceptor.Funcs{
				SubResourceCreate: func(_ context.Context, _ client.Client, _ string, _, sub client.Object, _ ...client.SubResourceCreateOption) error {
					asked++
					request := sub.(*authenticationv1.TokenRequest)
					if life := time.Duration(*request.Spec.ExpirationSeconds) * time.Second; life <= tt.may {
						got, request.Status.Token = life, "next"
						return nil
					}
					return apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts/token"}, registration.AgentAccount, errors.New("too long"))
				},
			}).Build()
			token, err := requestNextToken(t.Context(), hub, credential{token: registration.TokenClaims{Issued: testStart, Expires: testStart.Add(tt.had)}})
			require.Equal(t, tt.want, got)
			require.Equal(t, tt.want > 0, err == nil)
			require.Equal(t, tt.want > 0, token != "")
			require.LessOrEqual(t, asked, 12)
		})
	}
}
