package prometheus

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/hub/history"
)

var elected = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newHistory() *history.History {
	h := history.New(elected)
	for i, bytes := range []int64{0, 600} {
		h.AddSample(elected.Add(time.Duration(i)*history.Step), []string{"bucket"}, []history.MemberSample{
			{Member: "a", Known: true, Slots: 1, Sources: []history.SourceSample{{Name: "bucket", TransferredBytes: bytes, Slots: 1}}},
		})
	}
	return h
}

// fakePrometheus answers query_range in the form of Prometheus: at the start of a step, the
// newest scrape shows the sample of the step before.
type fakePrometheus struct {
	mu      sync.Mutex
	queries []string
	headers http.Header
	// answer replaces the answer to a query; nil: none.
	answer func(w http.ResponseWriter, query string) bool
}

func (f *fakePrometheus) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.FormValue("query")
	f.mu.Lock()
	f.queries, f.headers = append(f.queries, query), r.Header.Clone()
	f.mu.Unlock()
	if r.URL.Path != "/api/v1/query_range" {
		http.NotFound(w, r)
		return
	}
	if f.answer != nil && f.answer(w, query) {
		return
	}
	end, _ := strconv.ParseFloat(r.FormValue("end"), 64)
	step, _ := strconv.ParseFloat(r.FormValue("step"), 64)
	type series struct {
		Metric map[string]string `json:"metric"`
		Values [][2]any          `json:"values"`
	}
	values := [][2]any{{end - step, "3"}, {end, "5"}, {end + step, "99"}}
	result := []series{{map[string]string{}, values}}
	switch {
	case strings.Contains(query, "by (source)"):
		result = []series{{map[string]string{"source": ""}, values}, {map[string]string{"source": "bucket"}, values}}
	case strings.Contains(query, "by (member)"):
		result = []series{{map[string]string{"member": "a"}, values}, {map[string]string{"member": "left"}, values}}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": map[string]any{"resultType": "matrix", "result": result}})
}

func buildAnswer(h *history.History, by string) readapi.History {
	return h.BuildAnswer(history.Query{By: by, Series: history.SeriesNames(), Window: history.MemberWindow, Points: 1000, Limit: 10}, elected.Add(time.Minute))
}

func TestHistoryIsFilled(t *testing.T) {
	fake := &fakePrometheus{}
	server := httptest.NewServer(fake)
	defer server.Close()
	h := newHistory()
	f := NewFiller(Options{URL: server.URL, Selector: `namespace="ot-hub"`}, func() {})
	require.True(t, f.readSeries(t.Context(), h, elected))
	assert.Len(t, fake.queries, len(queries))
	for _, query := range fake.queries {
		assert.Contains(t, query, `namespace="ot-hub"}`)
	}
	for by, want := range map[string]int{readapi.ByFleet: 1, readapi.BySource: 2, readapi.ByCluster: 1} {
		answer := buildAnswer(h, by)
		require.Len(t, answer.Lines, want, by)
		require.NotNil(t, answer.Prometheus)
		assert.Empty(t, answer.Prometheus.Problem)
		assert.Equal(t, elected, answer.Since.Time)
		line := answer.Lines[0]
		at := int(elected.Sub(answer.Start.Time)/time.Second)/answer.StepSeconds - 1
		for _, series := range history.SeriesNames() {
			assert.InDelta(t, 5, line.Values[series][at], 0, "%s by %s: the last step before the election", series, by)
			assert.InDelta(t, 3, line.Values[series][at-1], 0, "%s by %s", series, by)
			assert.NotContains(t, line.Values[series], 99.0, "from the election on, it has seen itself what there was")
		}
	}
	assert.Equal(t, 5, buildAnswer(h, readapi.ByFleet).Lines[0].UnknownMembers[359-2], "how much is missing in a sum comes from there, too")
}

// What cannot be read is said, and the History keeps what it has.
func TestProblemsAreSaid(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(w http.ResponseWriter)
		want   string
	}{
		"an error of the query": {func(w http.ResponseWriter) {
			w.WriteHeader(400)
			_, _ = fmt.Fprint(w, `{"status":"error","errorType":"bad_data","error":"no\u001b[31m"}`)
		}, "bad_data: no [31m"},
		"refused":        {func(w http.ResponseWriter) { w.WriteHeader(401) }, "client_error"},
		"another server": {func(w http.ResponseWriter) { _, _ = fmt.Fprint(w, "<html>") }, "bad_response"},
		"sent on": {func(w http.ResponseWriter) {
			w.Header().Set("Location", "https://login.example.com")
			w.WriteHeader(302)
		}, "the server sends on to https://login.example.com"},
		"another form of answer": {func(w http.ResponseWriter) {
			_, _ = fmt.Fprint(w, `{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}`)
		}, "instead of a matrix"},
		"too many series": {func(w http.ResponseWriter) {
			_, _ = fmt.Fprint(w, `{"status":"success","data":{"resultType":"matrix","result":[`+strings.TrimSuffix(strings.Repeat(`{"metric":{},"values":[]},`, maxSeries+1), ",")+`]}}`)
		}, "select those of this hub"},
		"too many points": {func(w http.ResponseWriter) {
			_, _ = fmt.Fprint(w, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[`+strings.TrimSuffix(strings.Repeat(`[1,"1"],`, maxPoints+1), ",")+`]}]}}`)
		}, "more than 2000000 points"},
		"too many bytes": {func(w http.ResponseWriter) {
			for chunk := strings.Repeat(" ", 1<<20); ; {
				if _, err := fmt.Fprint(w, chunk); err != nil {
					return
				}
			}
		}, "exceeds 32 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			fake := &fakePrometheus{answer: func(w http.ResponseWriter, _ string) bool { tt.answer(w); return true }}
			server := httptest.NewServer(fake)
			defer server.Close()
			h := newHistory()
			assert.False(t, NewFiller(Options{URL: server.URL}, func() {}).readSeries(t.Context(), h, elected))
			answer := buildAnswer(h, readapi.ByFleet)
			assert.Contains(t, answer.Prometheus.Problem, tt.want)
			assert.NotContains(t, answer.Prometheus.Problem, "ot_hub_", "the query is not shown")
			assert.Nil(t, answer.Prometheus.From)
			assert.InDelta(t, 10, answer.Lines[0].Values[readapi.SeriesBytes][len(answer.Lines[0].Values[readapi.SeriesBytes])-1], 0, "what it has seen is there")
		})
	}
	h := newHistory()
	assert.False(t, NewFiller(Options{URL: "http://127.0.0.1:1"}, func() {}).readSeries(t.Context(), h, elected))
	assert.Contains(t, buildAnswer(h, readapi.ByFleet).Prometheus.Problem, "refused")
}

// It asks again with the next sample where it failed, and never after it has succeeded.
func TestItIsAskedUntilItHasAnswered(t *testing.T) {
	fails := 2
	fake := &fakePrometheus{}
	fake.answer = func(w http.ResponseWriter, _ string) bool {
		if fails--; fails >= 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return fails >= 0
	}
	server := httptest.NewServer(fake)
	defer server.Close()
	filled := make(chan struct{})
	f := NewFiller(Options{URL: server.URL}, func() { filled <- struct{}{} })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- f.Start(ctx) }()
	h := newHistory()
	for range 3 {
		f.Offer(h)
		<-filled
	}
	asked := len(fake.queries)
	assert.Equal(t, 2+len(queries), asked)
	f.Offer(h)                            // has been filled
	for f.Offer(h); len(f.offered) > 0; { // waits until the one before is dealt with
	}
	another := newHistory() // of another election
	f.Offer(another)
	<-filled
	assert.Len(t, fake.queries, asked+len(queries))
	cancel()
	require.NoError(t, <-ended)
}

func TestCredentialsAreRead(t *testing.T) {
	fake := &fakePrometheus{}
	server := httptest.NewTLSServer(fake)
	defer server.Close()
	folder := t.TempDir()
	reader := Reader{Options{URL: server.URL, CredentialsDir: folder}}
	ask := func() error {
		_, err := reader.queryRange(t.Context(), "up", elected.Add(-time.Hour), elected, time.Minute)
		return err
	}
	require.ErrorContains(t, ask(), "certificate", "its certificate is of nobody known")
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	write("ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	require.NoError(t, ask())
	assert.Empty(t, fake.headers.Get("Authorization"))
	for _, token := range []string{"one\n", "two"} { // it is replaced
		write("token", token)
		require.NoError(t, ask())
		assert.Equal(t, "Bearer "+strings.TrimSpace(token), fake.headers.Get("Authorization"))
	}
	write("ca.crt", "no certificate")
	require.ErrorContains(t, ask(), "ca.crt in --prometheus-credentials-dir has no certificate")
}

// A token that is given after the start is not sent in plain text, either.
func TestTokensAreNotSentInPlainText(t *testing.T) {
	folder := t.TempDir()
	reader := Reader{Options{URL: "http://prometheus.example.invalid:9090", CredentialsDir: folder}}
	require.NoError(t, reader.Validate())
	require.NoError(t, os.WriteFile(filepath.Join(folder, "token"), []byte("secret"), 0o600))
	_, err := reader.newSender()
	require.ErrorContains(t, err, "is not sent in plain text")
}

func TestOptionsAreChecked(t *testing.T) {
	withToken := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(withToken, "token"), []byte("t"), 0o600))
	for name, tt := range map[string]struct {
		options Options
		want    string
	}{
		"none":                    {Options{}, ""},
		"a URL":                   {Options{URL: "http://prometheus.monitoring:9090"}, ""},
		"with a path":             {Options{URL: "https://metrics.example.com/prometheus", CredentialsDir: withToken}, ""},
		"a selector":              {Options{URL: "http://p:9090", Selector: `namespace="ot-hub",cluster=~"eu-.*"`}, ""},
		"a quote in a selector":   {Options{URL: "http://p:9090", Selector: `job="a\"b"`}, ""},
		"no URL":                  {Options{URL: "prometheus:9090"}, "is not the URL of a Prometheus"},
		"a user":                  {Options{URL: "https://u:secret@p"}, "is not the URL of a Prometheus"},
		"a query":                 {Options{URL: "https://p/?x=1"}, "is not the URL of a Prometheus"},
		"a selector that ends":    {Options{URL: "http://p:9090", Selector: `a="b"} or up{a="b"`}, "has to be matchers of labels"},
		"a selector in braces":    {Options{URL: "http://p:9090", Selector: `{a="b"}`}, "has to be matchers of labels"},
		"a token in plain text":   {Options{URL: "http://p:9090", CredentialsDir: withToken}, "in plain text"},
		"a token to this machine": {Options{URL: "http://127.0.0.1:9090", CredentialsDir: withToken}, ""},
		"a selector without URL":  {Options{Selector: `a="b"`}, "need --prometheus-url"},
		"a folder without URL":    {Options{CredentialsDir: withToken}, "need --prometheus-url"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tt.options.Validate()
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.want)
			assert.NotContains(t, err.Error(), "secret")
		})
	}
}
