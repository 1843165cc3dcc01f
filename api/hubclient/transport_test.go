package hubclient

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A server in place of the API server gets the token that was meant for it, but cannot
// redirect the token or the request elsewhere.
func TestRedirectsAreRefused(t *testing.T) {
	var asked atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Store(true) }))
	defer elsewhere.Close()
	server := httptest.NewTLSServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer server.Close()
	cfg := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}

	c, done, err := NewClient(cfg, time.Second, client.Options{Scheme: Scheme, Mapper: Mapper})
	require.NoError(t, err)
	defer done()
	root := client.ObjectKey{Namespace: "ot-member-a", Name: v1alpha1.MailboxName}
	require.ErrorContains(t, c.Get(t.Context(), root, &v1alpha1.ClusterReport{}), "it redirects to ")

	token := &Token{}
	token.Set("secret")
	connection, err := New(Endpoint{Config: cfg, Token: token, Namespace: "ot-member-a", Report: &v1alpha1.ClusterReport{}}, Options{SyncTimeout: 100 * time.Millisecond})
	require.NoError(t, err)
	defer connection.Close()
	_, err = connection.Probe(t.Context())
	require.ErrorContains(t, err, "it redirects to ")
	connection.endpoint.Watched = []client.Object{&v1alpha1.ClusterReport{}}
	require.Error(t, connection.Start(t.Context()), "nor does a watch follow")
	require.False(t, asked.Load())
}

// A server that is overloaded for a moment is asked again; one that stays so is not asked
// until the request times out, which would hide its error.
func TestRefusedRequestsAreRetried(t *testing.T) {
	for name, tt := range map[string]struct {
		refusals int64
		want     func(error) bool
	}{
		"once":   {1, apierrors.IsNotFound},
		"always": {math.MaxInt64, apierrors.IsServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				status := apierrors.NewNotFound(schema.GroupResource{Resource: "clusterreports"}, "a").Status()
				if requests.Add(1) <= tt.refusals {
					w.Header().Set("Retry-After", "2147483647")
					status = apierrors.NewServiceUnavailable("overloaded").Status()
				}
				status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(int(status.Code))
				_ = json.NewEncoder(w).Encode(status)
			}))
			defer server.Close()
			c, done, err := NewClient(&rest.Config{Host: server.URL}, 4*time.Second, client.Options{Scheme: Scheme, Mapper: Mapper})
			require.NoError(t, err)
			defer done()
			err = c.Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "a"}, &v1alpha1.ClusterReport{})
			require.True(t, tt.want(err), "%v", err)
			require.Greater(t, requests.Load(), int64(1))
		})
	}
}
