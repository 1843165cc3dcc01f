package connect

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// A server of --read-api that accepts and is silent is given up.
func TestSilentReadAPI(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(server.Close)
	api, err := openURL(server.URL, &rest.Config{}, 10*time.Millisecond)
	require.NoError(t, err)
	_, err = api.Summary(t.Context())
	require.ErrorContains(t, err, "timeout awaiting response headers")
}
