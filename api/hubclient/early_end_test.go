package hubclient

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// endingWatches is an API server that ends each watch early, and counts the lists.
type endingWatches struct {
	after time.Duration
	lists int
}

// RoundTrip implements http.RoundTripper.
func (s *endingWatches) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r}
	if r.URL.Query().Get("watch") == "" {
		s.lists++
		answer.Body = io.NopCloser(strings.NewReader(reportList("")))
	} else {
		answer.Body = io.NopCloser(&sleepingReader{r.Context(), s.after})
	}
	return answer, nil
}

// sleepingReader ends after a time.
type sleepingReader struct {
	ctx   context.Context
	after time.Duration
}

func (r *sleepingReader) Read([]byte) (int, error) {
	if err := trigger.Sleep(r.ctx, r.after); err != nil {
		return 0, err
	}
	return 0, io.EOF
}

// Each list may be as large as a mailbox may be.
func TestWatchesThatEndEarlyAreListedSeldom(t *testing.T) {
	for name, tt := range map[string]struct {
		after               time.Duration
		wantLeast, wantMost int
	}{
		"after a second":         {after: 1100 * time.Millisecond, wantLeast: 5, wantMost: 10},
		"after a minute, idle":   {after: time.Minute - time.Second, wantLeast: 3, wantMost: 3},
		"after some ten minutes": {after: time.Hour, wantLeast: 1, wantMost: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				server := &endingWatches{after: tt.after}
				report := &v1alpha1.ClusterReport{}
				c, err := New(Endpoint{
					Config: &rest.Config{Host: "http://member.example.com"}, Token: &Token{}, Namespace: "ot-agent", Watched: []client.Object{report}, Report: report,
				}, Options{})
				require.NoError(t, err)
				defer c.Close()
				c.watching, err = rest.RESTClientForConfigAndClient(&rest.Config{
					Host: "http://member.example.com", APIPath: "/apis", QPS: -1,
					ContentConfig: rest.ContentConfig{GroupVersion: &v1alpha1.GroupVersion, NegotiatedSerializer: codecs},
				}, &http.Client{Transport: server})
				require.NoError(t, err)
				w, err := c.newWatch(report)
				require.NoError(t, err)
				c.cache.addKind(w.kind)
				w.run(ctx)
				assert.GreaterOrEqual(t, server.lists, tt.wantLeast)
				assert.LessOrEqual(t, server.lists, tt.wantMost)
				assert.Empty(t, c.watchErrors)
			})
		})
	}
}
