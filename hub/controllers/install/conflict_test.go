package install

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/charts"
	"github.com/pelotech/ot-fleet/hub/controllers/connection"
	"github.com/pelotech/ot-fleet/hub/helm"
	"github.com/pelotech/ot-fleet/hub/install"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// serveMember serves a member without an agent, which answers each creation of a Lease with a conflict,
// and counts these. While held is set, it shows a Lease of another process. It returns a kubeconfig.
func serveMember(t *testing.T, leases *atomic.Int32, held *atomic.Bool) []byte {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		refuse := func(code int32, reason metav1.StatusReason) {
			w.WriteHeader(int(code))
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: code, Reason: reason})
		}
		switch {
		case path.Dir(r.URL.Path) == "/api/v1/namespaces":
			kind, version := "Namespace", "v1"
			if strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata") {
				kind, version = "PartialObjectMetadata", "meta.k8s.io/v1"
			}
			fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,"metadata":{"name":%q,"uid":"abc","resourceVersion":"7"}}`, kind, version, path.Base(r.URL.Path))
		case path.Base(r.URL.Path) == "secrets":
			fmt.Fprint(w, `{"kind":"SecretList","apiVersion":"v1","items":[]}`)
		case path.Base(r.URL.Path) == "leases" && r.Method == http.MethodPost:
			leases.Add(1)
			refuse(http.StatusConflict, metav1.StatusReasonAlreadyExists)
		case path.Base(path.Dir(r.URL.Path)) == "leases" && r.Method == http.MethodGet && held.Load():
			fmt.Fprintf(w, `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":%q,"namespace":"ot-agent","resourceVersion":"%d"},"spec":{"holderIdentity":"x","leaseDurationSeconds":1}}`,
				path.Base(r.URL.Path), leases.Load())
		default:
			refuse(http.StatusNotFound, metav1.StatusReasonNotFound)
		}
	}))
	t.Cleanup(s.Close)
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["c"] = &clientcmdapi.Cluster{Server: s.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})}
	cfg.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "admin"}
	cfg.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	cfg.CurrentContext = "x"
	kubeconfig, err := clientcmd.Write(*cfg)
	require.NoError(t, err)
	return kubeconfig
}

// installInServed returns a Reconciler with one member, which serveMember serves, and what reconciles it and
// returns the delay, the condition's reason, and the attempts.
func installInServed(t *testing.T, leases *atomic.Int32, held *atomic.Bool) (*Reconciler, func() (time.Duration, string, install.Attempts)) {
	t.Helper()
	hubScheme := runtime.NewScheme()
	require.NoError(t, errors.Join(clientgoscheme.AddToScheme(hubScheme), v1alpha1.AddToScheme(hubScheme)))
	member := &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: "u1", Labels: map[string]string{v1alpha1.LabelInstallAgent: "true"}},
		Spec:       v1alpha1.MemberClusterSpec{Connection: v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "edge"}}, AgentNamespace: "ot-agent"},
	}
	api := fake.NewClientBuilder().WithScheme(hubScheme).WithObjects(member,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "hub"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-hub", Name: "edge"}, Data: map[string][]byte{"kubeconfig": serveMember(t, leases, held)}}).
		WithIndex(&v1alpha1.MemberCluster{}, "claim", func(o client.Object) []string {
			return []string{string(memberstatus.ClaimedCluster(o.(*v1alpha1.MemberCluster)))}
		}).Build()
	chart, err := helm.LoadChart(charts.Agent, "ot-agent", "v1.2.3")
	require.NoError(t, err)
	r := &Reconciler{
		Client: api, Live: api, Events: events.NewFakeRecorder(100), Metrics: metrics.NewInstalls(prometheus.NewRegistry()), Conditions: &Conditions{},
		Admins: &connection.AdminKubeconfigs{Secrets: &connection.SecretReader{Cached: api, Live: api, Namespace: "ot-hub"}, Live: api},
		Chart:  chart, Namespace: "ot-hub", Process: "p", RequestTimeout: 10 * time.Second, LeaseDuration: leaseDuration, Backoff: time.Minute, installSlots: make(chan struct{}, 1),
	}
	return r, func() (time.Duration, string, install.Attempts) {
		t.Helper()
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(member)})
		require.NoError(t, err)
		stored := &v1alpha1.MemberCluster{}
		require.NoError(t, api.Get(t.Context(), client.ObjectKeyFromObject(member), stored))
		condition, _ := r.Conditions.Published(member)
		require.NotNil(t, condition)
		return result.RequeueAfter, condition.Reason, install.ParseAttempts(stored.Annotations[v1alpha1.AnnotationInstallAttempts])
	}
}

// A member chooses what it answers: one whose Lease cannot be taken must not hold an install slot again and
// again. What lasts counts as an attempt, as any other failure does, and is said.
func TestConflictOverLeaseThatLastsIsAnAttempt(t *testing.T) {
	var leases atomic.Int32
	r, reconcile := installInServed(t, &leases, &atomic.Bool{})
	last := time.Duration(0)
	for range 5 {
		wait, reason, attempts := reconcile()
		assert.Greater(t, wait, last, "another process may have been faster")
		assert.Equal(t, v1alpha1.ReasonInstalling, reason)
		assert.Zero(t, attempts)
		last = wait
	}
	wait, reason, attempts := reconcile()
	assert.InDelta(t, r.Backoff, wait, float64(10*time.Second))
	assert.Equal(t, v1alpha1.ReasonInstallFailed, reason)
	assert.Equal(t, 1, attempts.Count)
	assert.Contains(t, attempts.Error, "acquiring Lease ot-agent/")
	assert.EqualValues(t, 6, leases.Load())
	assert.Empty(t, r.installSlots)
}

// Nothing that the member shows in between begins the count anew.
func TestConflictsOverLeaseAddUp(t *testing.T) {
	var leases atomic.Int32
	var held atomic.Bool
	r, reconcile := installInServed(t, &leases, &held)
	for range maxLeaseConflicts {
		_, reason, attempts := reconcile()
		assert.Equal(t, v1alpha1.ReasonInstalling, reason)
		assert.Zero(t, attempts)
		held.Store(true)
		_, reason, _ = reconcile()
		assert.Equal(t, v1alpha1.ReasonInstalling, reason, "another process installs")
		held.Store(false)
	}
	_, reason, attempts := reconcile()
	assert.Equal(t, v1alpha1.ReasonInstallFailed, reason)
	assert.Equal(t, 1, attempts.Count)
	assert.EqualValues(t, maxLeaseConflicts+1, leases.Load())
	assert.Empty(t, r.leaseConflicts, "the next attempt has its own")
}
