package web

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/hub/history"
	"github.com/pelotech/ot-fleet/hub/prometheus"
)

// A replica that has just been elected answers with what Prometheus remembers, and says so. One
// whose Prometheus does not answer says that, and answers as before.
func TestHistoryHasWhatPrometheusRemembers(t *testing.T) {
	broken := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_, _ = fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"source":""},"values":[[%d,"42"]]}]}}`, time.Now().Add(-time.Hour).Unix())
	}))
	defer server.Close()
	for _, broken = range []bool{false, true} {
		f := newTestFleet(t, "a")
		remembered := history.New(time.Now())
		f.History = func() *history.History { return remembered }
		filled := make(chan struct{})
		filler := prometheus.NewFiller(prometheus.Options{URL: server.URL}, func() { close(filled) })
		watcher := Watcher{Index: f.Index, Changes: f.Changes, Groups: func() []string { return nil }, Sampled: filler.Offer, remembered: remembered}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- filler.Start(ctx) }()
		watcher.sample(time.Now())
		<-filled
		var answer readapi.History
		f.read(t, "history?by=fleet&window=2h&points=120", &answer)
		require.NotNil(t, answer.Prometheus)
		require.Len(t, answer.Lines, 1)
		if broken {
			assert.NotEmpty(t, answer.Prometheus.Problem)
			assert.Nil(t, answer.Prometheus.From)
			assert.NotContains(t, answer.Lines[0].Values[readapi.SeriesSlots], 42.0)
		} else {
			assert.Empty(t, answer.Prometheus.Problem)
			assert.True(t, answer.Prometheus.From.Time.Before(answer.Since.Time))
			assert.Contains(t, answer.Lines[0].Values[readapi.SeriesSlots], 42.0)
		}
		var s readapi.Summary
		f.read(t, "summary", &s)
		assert.Equal(t, answer.Prometheus.From, s.RemembersSince)
		assert.Contains(t, answer.Lines[0].Values[readapi.SeriesSlots], 1.0, "what it has seen itself")
		cancel()
		require.NoError(t, <-ended)
	}
}
