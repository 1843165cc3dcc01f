package connection

import (
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
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
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
	"github.com/pelotech/ot-fleet/hub/credential"
)

// reportingIssuer is a member's API server that issues tokens and has a report.
type reportingIssuer struct {
	fakeIssuer
	reported string // the UID of the cluster; empty for no report
	refuses  bool   // it answers 401 to everything
	url      string
	ca       []byte
}

func startReportingIssuer(t *testing.T) *reportingIssuer {
	t.Helper()
	i := &reportingIssuer{fakeIssuer: fakeIssuer{maxLife: 7 * 24 * time.Hour, user: "system:serviceaccount:ot-agent:ot-hub"}}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		report := ""
		switch {
		case i.refuses:
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","message":"Unauthorized","code":401}`)
			return
		case !strings.Contains(r.URL.Path, "/clusterreports"):
			i.ServeHTTP(w, r)
			return
		case i.reported != "":
			report = fmt.Sprintf(`{"kind":"ClusterReport","apiVersion":"pelotech.ot/v1alpha1","metadata":{"name":"default","namespace":"ot-agent"},"clusterUID":%q}`, i.reported)
		}
		_, _ = fmt.Fprintf(w, `{"kind":"ClusterReportList","apiVersion":"pelotech.ot/v1alpha1","metadata":{},"items":[%s]}`, report)
	}))
	t.Cleanup(server.Close)
	i.url, i.ca = server.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return i
}

// kubeconfigFor returns a kubeconfig with a token of ServiceAccount ot-hub that is valid for a time.
func (i *reportingIssuer) kubeconfigFor(t *testing.T, life time.Duration) []byte {
	t.Helper()
	claims := fmt.Sprintf(`{"sub":"system:serviceaccount:ot-agent:ot-hub","exp":%d}`, time.Now().Add(life).Unix())
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["c"] = &clientcmdapi.Cluster{Server: i.url, CertificateAuthorityData: i.ca}
	cfg.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "h." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".s"}
	cfg.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	cfg.CurrentContext = "x"
	text, err := clientcmd.Write(*cfg)
	require.NoError(t, err)
	return text
}

// TestKubeconfigOfAnotherClusterCostsNoToken: a kubeconfig of cluster B in the Secret of cluster A works. The
// hub's token of A outlives it, since the one that A was given may have expired long ago.
func TestKubeconfigOfAnotherClusterCostsNoToken(t *testing.T) {
	for name, tt := range map[string]struct {
		reported   string // by B
		refuses    bool   // so does B
		sameServer bool
		change     func(*v1alpha1.MemberCluster, *corev1.Secret)
		want       bool // A's token is kept
	}{
		"no report":                    {want: true},
		"B refuses the token":          {refuses: true, want: true},
		"of another cluster":           {reported: "cluster-b", want: true},
		"of the member: its address":   {reported: "cluster-a"},
		"another user of the server":   {sameServer: true},
		"the member has no cluster":    {reported: "cluster-b", change: func(m *v1alpha1.MemberCluster, _ *corev1.Secret) { m.Status.ClusterUID = "" }},
		"the member never reported":    {change: func(m *v1alpha1.MemberCluster, _ *corev1.Secret) { m.Status.ClusterUID = "" }},
		"the hub's token has expired":  {reported: "cluster-b", change: func(_ *v1alpha1.MemberCluster, s *corev1.Secret) { setExpiry(s, -time.Second) }},
		"the hub's token is no longer": {reported: "cluster-b", change: func(_ *v1alpha1.MemberCluster, s *corev1.Secret) { s.Data = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := startReportingIssuer(t), startReportingIssuer(t)
			before, other := a.kubeconfigFor(t, time.Hour), b.kubeconfigFor(t, time.Hour)
			if tt.sameServer {
				other = a.kubeconfigFor(t, 2*time.Hour)
			}
			b.reported, b.refuses = tt.reported, tt.refuses
			scheme := runtime.NewScheme()
			require.NoError(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
			member := &v1alpha1.MemberCluster{
				ObjectMeta: metav1.ObjectMeta{Name: "edge"},
				Spec: v1alpha1.MemberClusterSpec{
					Connection: v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "edge", Key: "kubeconfig"}}, AgentNamespace: "ot-agent",
				},
				Status: v1alpha1.MemberClusterStatus{ClusterUID: "cluster-a"},
			}
			given := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-hub", Name: "edge"}, Data: map[string][]byte{"kubeconfig": before}}
			api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(member, given).Build()
			k := &credentialReconciler{
				Options: Options{Namespace: "ot-hub", Links: &shard.Links{Cached: api}, Problems: &CredentialProblems{}, Rotations: &Rotations{}},
				client:  api, live: api, secrets: &SecretReader{Cached: api, Live: api, Namespace: "ot-hub"}, events: events.NewFakeRecorder(100),
			}
			k.setDefaults()
			k.reconcileEdge(t)
			token := &corev1.Secret{}
			key := types.NamespacedName{Namespace: "ot-hub", Name: TokenSecretName("edge")}
			require.NoError(t, api.Get(t.Context(), key, token))
			purpose, err := givenPurpose(member, before)
			require.NoError(t, err)
			_, known := tokenFromSecret(token, purpose)
			require.True(t, known)
			if tt.change != nil {
				require.NoError(t, api.Get(t.Context(), types.NamespacedName{Name: "edge"}, member))
				tt.change(member, token)
				require.NoError(t, errors.Join(api.Update(t.Context(), member), api.Update(t.Context(), token)))
			}

			require.NoError(t, api.Get(t.Context(), types.NamespacedName{Namespace: "ot-hub", Name: "edge"}, given))
			given.Data["kubeconfig"] = other
			require.NoError(t, api.Update(t.Context(), given))
			wait := k.reconcileEdge(t)
			require.NoError(t, api.Get(t.Context(), key, token))
			_, kept := tokenFromSecret(token, purpose)
			assert.Equal(t, tt.want, kept)
			if tt.want {
				assert.Empty(t, b.requests, "B is asked for no token")
				assert.Equal(t, credential.ProbeInterval, wait)
				condition := k.Rotations.ForMember(member)
				require.NotNil(t, condition)
				if tt.refuses {
					assert.Equal(t, v1alpha1.ReasonCredentialRefused, condition.Reason)
					b.refuses = false
					k.reconcileEdge(t)
					condition = k.Rotations.ForMember(member)
					assert.Empty(t, b.requests, "it accepts the token, and has no report")
				}
				assert.Equal(t, v1alpha1.ReasonRotationPending, condition.Reason)
				assert.Contains(t, condition.Message, "Secret ot-hub/edge has another kubeconfig than before")
			}
		})
	}
}

func setExpiry(secret *corev1.Secret, in time.Duration) {
	secret.Annotations[annotationTokenExpires] = time.Now().Add(in).UTC().Format(time.RFC3339Nano)
}
