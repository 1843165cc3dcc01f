package connect_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
)

// What is no API server, or fails, is named with its context and address.
func TestForeignAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		code       int
		kind, body string
		want       string
	}{
		"a page to sign in": {http.StatusOK, "text/html", "<html>Sign in", "is no API server, as a page to sign in or a proxy is not"},
		"a proxy's failure": {http.StatusInternalServerError, "text/html", "<html>oops", "fails: "},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", test.kind)
				w.WriteHeader(test.code)
				_, _ = w.Write([]byte(test.body))
			}))
			t.Cleanup(server.Close)
			config := &rest.Config{Host: server.URL, QPS: -1}
			c, err := client.NewWithWatch(config, client.Options{Scheme: connect.Scheme})
			require.NoError(t, err)
			hub := &connect.Cluster{Context: "team/hub", Config: config, Client: c}
			err = hub.List(t.Context(), &v1alpha1.MemberClusterList{})
			require.ErrorContains(t, err, test.want)
			require.ErrorContains(t, err, "context team/hub: ")
			require.ErrorContains(t, err, server.URL)
		})
	}
}
