package connection

import (
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
	"github.com/pelotech/ot-fleet/hub/credential"
)

// newClusterAPIMember returns a credentialReconciler with member edge of Cluster team/edge, whose
// API server fails each request with 500. asked counts these.
func newClusterAPIMember(t *testing.T, stored ...client.Object) (k *credentialReconciler, asked *atomic.Int32) {
	t.Helper()
	asked = &atomic.Int32{}
	down := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusInternalServerError)
	}))
	t.Cleanup(down.Close)
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["c"] = &clientcmdapi.Cluster{Server: down.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: down.Certificate().Raw})}
	cfg.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "admin"}
	cfg.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	cfg.CurrentContext = "x"
	admin, err := clientcmd.Write(*cfg)
	require.NoError(t, err)

	scheme := runtime.NewScheme()
	require.NoError(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(stored,
		&v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Spec: v1alpha1.MemberClusterSpec{
			Connection: v1alpha1.MemberConnection{ClusterAPI: &v1alpha1.ClusterAPIRef{Namespace: "team", Name: "edge"}}, AgentNamespace: "ot-agent",
		}},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "edge-kubeconfig", Labels: map[string]string{"cluster.x-k8s.io/cluster-name": "edge"}},
			Type:       "cluster.x-k8s.io/secret", Data: map[string][]byte{"value": admin},
		})...).Build()
	k = &credentialReconciler{
		Options: Options{Namespace: "ot-hub", Links: &shard.Links{Cached: api}, Problems: &CredentialProblems{}, Rotations: &Rotations{}},
		client:  api, live: api, secrets: &SecretReader{Cached: api, Live: api, Namespace: "ot-hub"}, events: events.NewFakeRecorder(100),
	}
	k.setDefaults()
	return k, asked
}

func (k *credentialReconciler) reconcileEdge(t *testing.T) time.Duration {
	t.Helper()
	result, err := k.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "edge"}})
	require.NoError(t, err)
	return result.RequeueAfter
}

// Nothing is renewed in quarantine, and nothing else is said.
func TestQuarantineIsShownByCredential(t *testing.T) {
	for name, tt := range map[string]struct {
		connection v1alpha1.MemberConnection
		want       string // empty for no condition
	}{
		"Cluster API": {v1alpha1.MemberConnection{ClusterAPI: &v1alpha1.ClusterAPIRef{Namespace: "team", Name: "edge"}}, "gets another one with Cluster API's kubeconfig"},
		"kubeconfig":  {v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "edge"}}, "run kubectl ot join push"},
		"pull mode":   {v1alpha1.MemberConnection{Pull: &v1alpha1.MemberPull{}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			k, asked := newClusterAPIMember(t)
			member := &v1alpha1.MemberCluster{}
			require.NoError(t, k.client.Get(t.Context(), types.NamespacedName{Name: "edge"}, member))
			k.Rotations.setCondition(member, credential.ClusterAPICondition(&credential.Issued{}, ""))
			member.Spec.Connection, member.Spec.Quarantine = tt.connection, &v1alpha1.MemberQuarantine{Reason: "lies"}
			require.NoError(t, k.client.Update(t.Context(), member))
			assert.Zero(t, k.reconcileEdge(t))
			assert.Zero(t, asked.Load())
			got := k.Rotations.ForMember(member)
			if tt.want == "" {
				assert.Nil(t, got)
				return
			}
			require.NotNil(t, got)
			assert.Equal(t, v1alpha1.ReasonQuarantined, got.Reason)
			assert.Contains(t, got.Message, tt.want)
		})
	}
}

// Otherwise members that are down hold the workers that others wait for.
func TestMemberThatIsDownIsAskedLessAndLess(t *testing.T) {
	k, asked := newClusterAPIMember(t)
	purpose := "team/edge/ot-agent"
	last := time.Duration(0)
	for n := range 6 {
		before := asked.Load()
		wait := k.reconcileEdge(t)
		require.Greater(t, asked.Load(), before, "attempt %d", n)
		assert.Greater(t, wait, last)
		last = min(wait, maxJoinDelay-time.Second)

		// Other events ask nothing.
		before = asked.Load()
		assert.Positive(t, k.reconcileEdge(t))
		assert.Equal(t, before, asked.Load(), "attempt %d", n)

		h := k.given.load("edge", purpose)
		failure := *h.failure
		failure.At = failure.At.Add(-maxJoinDelay)
		h.failure = &failure
		k.given.store("edge", h)
	}
	assert.LessOrEqual(t, last, maxJoinDelay)
}

// Its link says when it is back; until then a token that is due to be renewed is kept.
func TestMemberThatIsUnreachableIsNotAsked(t *testing.T) {
	for name, tt := range map[string]struct {
		link      v1alpha1.MemberLinkStatus
		wantAsked bool
	}{
		"reachable":   {v1alpha1.MemberLinkStatus{Known: true, Reachable: true}, true},
		"not known":   {v1alpha1.MemberLinkStatus{}, true},
		"unreachable": {v1alpha1.MemberLinkStatus{Known: true, Reason: v1alpha1.ReasonUnreachable, Message: "no answer"}, false},
		"refused":     {v1alpha1.MemberLinkStatus{Known: true, Reason: v1alpha1.ReasonUnauthorized}, true},
	} {
		t.Run(name, func(t *testing.T) {
			link := &v1alpha1.MemberLink{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-member-edge", Name: v1alpha1.MailboxName}, Status: tt.link}
			k, asked := newClusterAPIMember(t, link)
			admin := &corev1.Secret{}
			require.NoError(t, k.client.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "edge-kubeconfig"}, admin))
			kubeconfig, err := kubeconfigWithToken(admin.Data["value"], "former")
			require.NoError(t, err)
			member := &v1alpha1.MemberCluster{}
			require.NoError(t, k.client.Get(t.Context(), client.ObjectKey{Name: "edge"}, member))
			token := &memberToken{purpose: clusterAPIPurpose(member), kubeconfig: kubeconfig, value: "former", issued: time.Now().Add(-6 * time.Hour), expires: time.Now().Add(6 * time.Hour)}
			require.NoError(t, k.writeTokenSecret(t.Context(), member, nil, token))

			assert.Positive(t, k.reconcileEdge(t))
			assert.Equal(t, tt.wantAsked, asked.Load() > 0)
			condition := k.Rotations.ForMember(member)
			require.NotNil(t, condition)
			assert.Equal(t, v1alpha1.ReasonRotationFailed, condition.Reason)
			if !tt.wantAsked {
				assert.Contains(t, condition.Message, "no answer")
			}
		})
	}
}
