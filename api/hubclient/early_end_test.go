package hubclient

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
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

// newPlayedConnection returns a connection to a server that needs no network, as in a bubble of synctest.
func newPlayedConnection(t *testing.T, server http.RoundTripper, watched ...client.Object) *Connection {
	t.Helper()
	c, err := New(Endpoint{
		Config: &rest.Config{Host: "http://member.example.com"}, Token: &Token{}, Namespace: "ot-agent", Watched: watched, Report: watched[0],
	}, Options{})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	c.watching, err = rest.RESTClientForConfigAndClient(&rest.Config{
		Host: "http://member.example.com", APIPath: "/apis", QPS: -1,
		ContentConfig: rest.ContentConfig{GroupVersion: &v1alpha1.GroupVersion, NegotiatedSerializer: codecs},
	}, &http.Client{Transport: server})
	require.NoError(t, err)
	return c
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
				c := newPlayedConnection(t, server, report)
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

// slowPlans lists plans after a time, while the first so many watches of reports end at once.
type slowPlans struct {
	after     time.Duration
	shortEnds atomic.Int32
}

// RoundTrip implements http.RoundTripper.
func (s *slowPlans) RoundTrip(r *http.Request) (*http.Response, error) {
	isPlans, isWatch := strings.HasSuffix(r.URL.Path, "/clusterplans"), r.URL.Query().Get("watch") != ""
	delay, text := time.Duration(0), ""
	switch {
	case isWatch && (isPlans || s.shortEnds.Add(-1) < 0):
		delay = time.Hour
	case isPlans:
		delay, text = s.after, strings.ReplaceAll(reportList(""), "ClusterReport", "ClusterPlan")
	case !isWatch:
		text = reportList("")
	}
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Body: io.NopCloser(io.MultiReader(&sleepingReader{r.Context(), delay}, strings.NewReader(text))),
	}, nil
}

// A watch that ends at once has three failures also while other kinds are listed: a connection that is
// established is not broken already.
func TestWatchThatEndsWhileOthersAreListed(t *testing.T) {
	for name, tt := range map[string]struct {
		shortEnds int32
		want      error
	}{
		"once":              {shortEnds: 1},
		"one less":          {shortEnds: maxWatchFailures - 1},
		"one too many":      {shortEnds: maxWatchFailures, want: errShortWatch},
		"none ends at once": {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				server := &slowPlans{after: 20 * time.Second}
				server.shortEnds.Store(tt.shortEnds)
				c := newPlayedConnection(t, server, &v1alpha1.ClusterReport{}, &v1alpha1.ClusterPlan{})
				require.ErrorIs(t, c.Start(ctx), tt.want)
				assert.Empty(t, c.watchErrors)
			})
		})
	}
}
