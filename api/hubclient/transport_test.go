package hubclient

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
