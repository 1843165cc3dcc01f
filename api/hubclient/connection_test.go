package hubclient

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A member that accepts requests and never answers is retried for as long as that lasts, so
// a goroutine leaked per attempt would add up.
func TestUnansweredConnectionLeavesNoGoroutines(t *testing.T) {
	const tries = 10
	asked := make(chan string, 8*tries)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		<-r.Context().Done()
	}))
	defer server.Close()
	token := &Token{}
	token.Set("secret")
	before := runtime.NumGoroutine()
	for range tries {
		c, err := New(Endpoint{
			Config: &rest.Config{Host: server.URL}, Token: token, Namespace: "ot-member-a", Report: &v1alpha1.ClusterReport{},
			Watched: []client.Object{&v1alpha1.ClusterReport{}, &v1alpha1.ClusterPlan{}},
		}, Options{RequestTimeout: 100 * time.Millisecond, SyncTimeout: 50 * time.Millisecond})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		require.ErrorIs(t, c.Start(ctx), context.DeadlineExceeded)
		cancel()
	}
	require.Eventually(t, func() bool { return runtime.NumGoroutine() < before+tries }, time.Minute, 10*time.Millisecond,
		"%d goroutines before %d tries", before, tries)
	for len(asked) > 0 {
		require.Contains(t, []string{
			"/apis/pelotech.ot/v1alpha1/namespaces/ot-member-a/clusterreports",
			"/apis/pelotech.ot/v1alpha1/namespaces/ot-member-a/clusterplans",
		}, <-asked, "it is not of the mailbox's namespace")
	}
}
