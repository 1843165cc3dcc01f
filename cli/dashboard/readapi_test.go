package dashboard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/cli/connect"
)

// serveReads serves a ReadAPI as the dashboard does.
func serveReads(t *testing.T, reads *ReadAPI) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(reads.Handler())
	t.Cleanup(server.Close)
	return server
}

// pageAnswer is an answer that was read.
type pageAnswer struct {
	StatusCode int
	Header     http.Header
}

func get(t *testing.T, url string, headers map[string]string) (pageAnswer, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return pageAnswer{response.StatusCode, response.Header}, string(text)
}

func TestReadsArePassedOn(t *testing.T) {
	var sent *http.Request
	_, reads := newReplica(t, func(w http.ResponseWriter, r *http.Request) {
		sent = r
		w.Header().Set("ETag", `"1"`)
		w.Header().Set("Set-Cookie", "a=b")
		answerJSON(w, r)
	})
	server := serveReads(t, reads)
	response, text := get(t, server.URL+"/fleet/v1/why?cluster=a&name=b%2Fc", map[string]string{
		"Cookie": "secret", "Authorization": "Bearer evil", "Impersonate-User": "root", "Ot-Hub-Forwarded": "1", "If-None-Match": `"0"`, "Last-Event-ID": "x.1",
	})
	assert.JSONEq(t, `{"read":true}`, text)
	assert.Equal(t, `"1"`, response.Header.Get("ETag"))
	assert.Empty(t, response.Header.Get("Set-Cookie"))
	assert.Equal(t, "/fleet/v1/why?cluster=a&name=b%2Fc", sent.URL.RequestURI())
	for _, name := range []string{"Cookie", "Authorization", "Impersonate-User", "Ot-Hub-Forwarded", "X-Forwarded-For"} {
		assert.Empty(t, sent.Header.Get(name), name)
	}
	assert.Equal(t, `"0"`, sent.Header.Get("If-None-Match"))
	assert.Equal(t, "x.1", sent.Header.Get("Last-Event-ID"))
}

func TestRefusalsSayWhatToDo(t *testing.T) {
	for name, tt := range map[string]struct {
		status      int
		contentType string
		want        int
		wantText    string
	}{
		"no right to read":   {403, "text/plain", 403, "ClusterRole ot-hub-reader"},
		"of the API itself":  {404, "application/json", 404, `{}`},
		"a page of a proxy":  {200, "text/html", 503, "no read API"},
		"a redirect":         {302, "application/json", 503, "no read API"},
		"a credential ended": {401, "text/plain", 503, "log in again"},
		"too long a body":    {413, "text/html", 413, "too long for the proxy in front of --read-api"},
		"too long a query":   {414, "text/html", 414, "too long for the proxy in front of --read-api"},
		"too long headers":   {431, "text/html", 431, "too long for the proxy in front of --read-api"},
		"too long, of API":   {413, "application/json", 413, `{}`},
		"not changed":        {304, "", 304, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, reads := newReplica(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "https://evil.example")
				w.Header().Set("Content-Type", tt.contentType)
				w.WriteHeader(tt.status)
				if tt.status != http.StatusNotModified {
					fmt.Fprint(w, "{}")
				}
			})
			response, text := get(t, serveReads(t, reads).URL+"/fleet/v1/summary", nil)
			assert.Equal(t, tt.want, response.StatusCode)
			assert.Contains(t, text, tt.wantText)
			assert.Empty(t, response.Header.Get("Location"))
		})
	}
}

// A replica that dies, or a port-forward, is replaced by the next request.
func TestReconnects(t *testing.T) {
	replicas := []*httptest.Server{httptest.NewServer(http.HandlerFunc(answerJSON)), httptest.NewServer(http.HandlerFunc(answerJSON))}
	defer replicas[1].Close()
	elected, opened := 0, 0
	var closed atomic.Int32
	// An answer is read before its connection is released.
	awaitClosed := func(wanted int32) {
		t.Helper()
		require.Eventually(t, func() bool { return closed.Load() == wanted }, time.Minute, time.Millisecond)
	}
	reads := NewReadAPI(func(context.Context) (*connect.ReadAPI, error) {
		opened++
		api, err := openServer(replicas[elected])
		api.Close = func() { closed.Add(1) }
		return api, err
	})
	server := serveReads(t, reads)
	for range 3 {
		response, _ := get(t, server.URL+"/fleet/v1/summary", nil)
		require.Equal(t, 200, response.StatusCode)
	}
	assert.Equal(t, 1, opened, "one connection for all")
	replicas[0].Close()
	elected = 1
	response, _ := get(t, server.URL+"/fleet/v1/summary", nil)
	assert.Equal(t, 200, response.StatusCode)
	assert.Equal(t, 2, opened)
	awaitClosed(1)

	at := time.Now().Add(connectionAge)
	reads.now = func() time.Time { return at }
	response, _ = get(t, server.URL+"/fleet/v1/summary", nil)
	assert.Equal(t, 200, response.StatusCode)
	assert.Equal(t, 3, opened, "its token expires")
	awaitClosed(2)
	reads.Close()
	awaitClosed(3)
}

// An expired credential is asked for anew, once.
func TestExpiredTokensAreReplaced(t *testing.T) {
	var opened atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if opened.Load() == 1 {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		answerJSON(w, r)
	}))
	defer server.Close()
	reads := NewReadAPI(func(context.Context) (*connect.ReadAPI, error) {
		opened.Add(1)
		return openServer(server)
	})
	response, _ := get(t, serveReads(t, reads).URL+"/fleet/v1/summary", nil)
	assert.Equal(t, 200, response.StatusCode)
	assert.EqualValues(t, 2, opened.Load())
}

// Without an elected replica the app is told so, and attempts are bounded.
func TestNoReplica(t *testing.T) {
	attempts, at := 0, time.Now()
	reads := NewReadAPI(func(context.Context) (*connect.ReadAPI, error) {
		attempts++
		return nil, errors.New("no replica is elected\x1b[31m")
	})
	reads.now = func() time.Time { return at }
	server := serveReads(t, reads)
	for range 5 {
		response, text := get(t, server.URL+"/fleet/v1/summary", nil)
		assert.Equal(t, 503, response.StatusCode)
		assert.NotEmpty(t, response.Header.Get("Retry-After"))
		assert.Contains(t, text, "no replica is elected")
		assert.NotContains(t, text, "\x1b")
	}
	assert.Equal(t, 1, attempts)
	at = at.Add(connectInterval)
	get(t, server.URL+"/fleet/v1/summary", nil)
	assert.Equal(t, 2, attempts)
	_, err := reads.MayRead(t.Context(), nil)
	require.Error(t, err, "unknown is no refusal")
}

// A stream ends with its replica; its connection is not used again, and closed once.
func TestStreamsEndWithTheirReplica(t *testing.T) {
	die := make(chan struct{})
	replica := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, ": opened\n\n")
		assert.NoError(t, http.NewResponseController(w).Flush())
		<-die
		panic(http.ErrAbortHandler)
	}))
	defer replica.Close()
	var opened, closed atomic.Int32
	reads := NewReadAPI(func(context.Context) (*connect.ReadAPI, error) {
		opened.Add(1)
		api, err := openServer(replica)
		api.Close = func() { closed.Add(1) }
		return api, err
	})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, serveReads(t, reads).URL+"/fleet/v1/events", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	line := make([]byte, len(": opened\n\n"))
	_, err = io.ReadFull(response.Body, line)
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(string(line), ": opened"), "it comes line by line")
	close(die)
	_, err = io.ReadAll(response.Body)
	require.Error(t, err, "a browser opens it again")
	require.Eventually(t, func() bool { return closed.Load() == 1 }, time.Minute, time.Millisecond)
	reads.Close()
	assert.EqualValues(t, 1, closed.Load())
	assert.EqualValues(t, 1, opened.Load())
}

func TestMayRead(t *testing.T) {
	status := 200
	_, reads := newReplica(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprint(w, "{}")
	})
	may, err := reads.MayRead(t.Context(), nil)
	require.NoError(t, err)
	assert.True(t, may)
	status = 403
	may, err = reads.MayRead(t.Context(), nil)
	require.NoError(t, err)
	assert.False(t, may)
}

// A replica that is gone without a word ends no stream: what is idle is ended here.
func TestIdleStreamsEnd(t *testing.T) {
	_, reads := newReplica(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, ": opened\n\n")
		assert.NoError(t, http.NewResponseController(w).Flush())
		<-r.Context().Done()
	})
	reads.streamIdle = time.Millisecond
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, serveReads(t, reads).URL+"/fleet/v1/events", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	_, err = io.ReadAll(response.Body)
	require.Error(t, err)
	require.Eventually(t, func() bool {
		reads.mu.Lock()
		defer reads.mu.Unlock()
		return reads.current == nil
	}, time.Minute, time.Millisecond, "the next request connects anew")
}
