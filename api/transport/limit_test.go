package transport

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/apitest"
)

// testLimits are small. The rate is so low that nothing is refilled during a test.
var testLimits = Limits{
	AnswerCost: 1 << 20, EventCost: 256 << 10, ErrorBytes: 64 << 10, AnswerTime: time.Minute,
	WatchBurst: 4 << 20, WatchRate: 1,
}

// newTestClient returns a client of a server, over HTTP/1.1 or 2, and the errors that were
// reported.
func newTestClient(t *testing.T, version2 bool, l Limits, handler http.HandlerFunc) (client *http.Client, url string, reported *[]*LimitError) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = version2
	server.StartTLS()
	t.Cleanup(server.Close)
	next := server.Client().Transport.(*http.Transport)
	next.DisableCompression, next.MaxResponseHeaderBytes = true, MaxHeaderBytes
	reported = &[]*LimitError{}
	return &http.Client{Transport: Limit(next, l, func(err *LimitError) { *reported = append(*reported, err) })}, server.URL, reported
}

// readAnswer reads a whole answer and returns how much that is. What no limit ends, ends
// after a minute.
func readAnswer(t *testing.T, client *http.Client, url string) (n int64, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	return io.Copy(io.Discard, response.Body)
}

// writeForever writes a text until the other side has enough.
func writeForever(w http.ResponseWriter, text string) {
	chunk := []byte(strings.Repeat(text, 1+(16<<10)/len(text)))
	for {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

func TestAnswersOverLimitsAreCutOff(t *testing.T) {
	bomb := apitest.CompressPadded("", ' ', 64, "")
	for name, tt := range map[string]struct {
		path   string
		answer http.HandlerFunc
		want   string
	}{
		"endless": {"/api", func(w http.ResponseWriter, _ *http.Request) { writeForever(w, "x") }, "is larger than 1 MiB"},
		"announced as large": {"/api", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000000000000")
			w.WriteHeader(http.StatusOK)
		}, "is larger than 1 MiB"},
		"many values": {"/api", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "["+strings.Repeat("1,", 10000)+"1]")
		}, "counting 128 bytes for each value"},
		"deeply nested": {"/api", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("[", 10000))
		}, "counting 128 bytes for each value"},
		"compressed": {"/api", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb)
		}, "is compressed"},
		"compressed error": {"/api", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write(bomb)
		}, "is compressed"},
		"protobuf": {"/api", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
			_, _ = w.Write([]byte{0x1a, 0})
		}, "has a content type"},
		"CBOR": {"/api", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/cbor-seq")
			_, _ = w.Write([]byte{0x80})
		}, "has a content type"},
		"no content type": {"/api", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", ";;")
		}, "has a content type"},
		"large header": {"/api", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Large", strings.Repeat("x", 2*MaxHeaderBytes))
		}, "has headers of more than 64 KiB"},
		"many headers": {"/api", func(w http.ResponseWriter, _ *http.Request) {
			for range MaxHeaderBytes / 8 {
				w.Header().Add("X-Many", "abcdefgh")
			}
		}, "has headers of more than 64 KiB"},
		"endless error": {"/api", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			writeForever(w, "x")
		}, "has an error of more than 64 KiB"},
		"endless error of a watch": {"/api?watch=true", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusGone)
			writeForever(w, "x")
		}, "has an error of more than 64 KiB"},
		"endless event": {"/api?watch=true", func(w http.ResponseWriter, _ *http.Request) { writeForever(w, `{"a":"`) }, "has an event larger than 256 KiB"},
		"endless space": {"/api?watch=1", func(w http.ResponseWriter, _ *http.Request) { writeForever(w, " \n") }, "has an event larger than 256 KiB"},
		"endless text":  {"/api?watch=1", func(w http.ResponseWriter, _ *http.Request) { writeForever(w, "1 ") }, "has an event larger than 256 KiB"},
		"large event": {"/api?watch=true", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"type":"ADDED"}`+"\n"+`{"object":"`+strings.Repeat("}", 256<<10)+`"}`)
		}, "has an event larger than 256 KiB"},
		"flood of events": {"/api?watch=true", func(w http.ResponseWriter, _ *http.Request) {
			writeForever(w, `{"type":"BOOKMARK"}`+"\n")
		}, "has too many events"},
	} {
		for _, version2 := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				client, url, reported := newTestClient(t, version2, testLimits, tt.answer)
				n, err := readAnswer(t, client, url+tt.path)
				var limit *LimitError
				require.ErrorAs(t, err, &limit)
				assert.Contains(t, limit.Error(), tt.want)
				assert.Contains(t, limit.Error(), "GET /api ")
				assert.Equal(t, []*LimitError{limit}, *reported)
				assert.LessOrEqual(t, n, testLimits.WatchBurst, "what was passed on")
			})
		}
	}
}

func TestAnswersWithinLimitsPass(t *testing.T) {
	text := `{"a":[` + strings.Repeat(`"{[,]}\"",`, 500) + `1]}` + "\n"
	for _, version2 := range []bool{false, true} {
		client, url, reported := newTestClient(t, version2, testLimits, func(w http.ResponseWriter, r *http.Request) {
			assert.Empty(t, r.Header.Get("Accept-Encoding"))
			w.Header().Set("Retry-After", "3600")
			w.Header().Set("Warning", `299 - "text"`)
			_, _ = io.WriteString(w, text)
		})
		for _, path := range []string{"/api", "/api?watch=true", "/api?watch=1"} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
			require.NoError(t, err)
			request.Header.Set("Accept-Encoding", "gzip")
			response, err := client.Do(request)
			require.NoError(t, err)
			got, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			assert.Equal(t, text, string(got))
			assert.Empty(t, response.Header.Get("Retry-After"), "it does not decide how long this process waits")
			assert.Empty(t, response.Header.Get("Warning"), "nor what it logs")
		}
		assert.Empty(t, *reported)
	}
}

// client-go retries only an answer with Retry-After. The server does not decide for how long.
func TestRetryAfterIsBounded(t *testing.T) {
	const absurd = "2147483647"
	for name, tt := range map[string]struct {
		code        int
		asked, want string
		left        time.Duration
	}{
		"too many requests":   {http.StatusTooManyRequests, absurd, "1", time.Minute},
		"unavailable":         {http.StatusServiceUnavailable, "Mon, 01 Jan 9999 00:00:00 GMT", "1", time.Minute},
		"internal error":      {http.StatusInternalServerError, "0", "1", time.Minute},
		"not asked to":        {http.StatusServiceUnavailable, "", "", time.Minute},
		"success":             {http.StatusOK, absurd, "", time.Minute},
		"a conflict":          {http.StatusConflict, absurd, "", time.Minute},
		"no time for a retry": {http.StatusServiceUnavailable, "1", "", 2 * retryDelay},
		"a list or watch":     {http.StatusTooManyRequests, absurd, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if tt.left > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, tt.left)
				defer cancel()
			}
			response := &http.Response{StatusCode: tt.code, Header: http.Header{}}
			if tt.asked != "" {
				response.Header.Set("Retry-After", tt.asked)
			}
			boundRetryAfter(ctx, response)
			assert.Equal(t, tt.want, response.Header.Get("Retry-After"))
		})
	}
}

// The limit of events is one of the connection: ending and restarting a watch does not
// reset it.
func TestLimitOfEventsOutlivesWatch(t *testing.T) {
	client, url, _ := newTestClient(t, true, testLimits, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("{}\n", 100))
	})
	var err error
	for i := 0; err == nil; i++ {
		require.Less(t, i, 100)
		_, err = readAnswer(t, client, url+"/api?watch=true")
	}
	require.ErrorContains(t, err, "has too many events")
}

// An answer, and an event that has begun, must be complete in time; a watch may be silent.
func TestStalledAnswers(t *testing.T) {
	limits := testLimits
	limits.AnswerTime = 10 * time.Millisecond
	for path, begin := range map[string]string{"/api": `{"a":`, "/api?watch=true": `{}{"a":`} {
		client, url, reported := newTestClient(t, true, limits, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, begin)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		_, err := readAnswer(t, client, url+path)
		var timeout interface{ Timeout() bool }
		require.ErrorAs(t, err, &timeout)
		require.True(t, timeout.Timeout())
		require.ErrorContains(t, err, "is not complete in time")
		require.Empty(t, *reported, "being slow exceeds no limit")
	}

	client, url, _ := newTestClient(t, true, limits, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "{}")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api?watch=true", nil)
	require.NoError(t, err)
	response, err := client.Do(request)
	require.NoError(t, err)
	_, err = io.ReadFull(response.Body, make([]byte, len("{}")))
	require.NoError(t, err)
	time.AfterFunc(20*limits.AnswerTime, cancel) // of silence
	_, err = io.ReadAll(response.Body)
	require.NoError(t, response.Body.Close())
	require.ErrorIs(t, err, context.Canceled, "a silent watch ends with its request only: %v", err)
}

func TestAcceptIsTextual(t *testing.T) {
	for accept, want := range map[string]string{
		"application/json": "application/json",
		"application/vnd.kubernetes.protobuf;as=Table,application/json;as=Table, application/json": "application/json;as=Table,application/json",
		"application/com.github.proto-openapi.spec.v2@v1.0+protobuf":                               "application/json",
		"application/cbor,application/json":                                                        "application/json",
	} {
		assert.Equal(t, want, textual(accept), accept)
	}
}

// The caller keeps what it has read: many answers within the limits are bounded, too.
func TestAnswersAreBoundedTogether(t *testing.T) {
	limits, sent := testLimits, 0
	limits.TotalCost = 2 << 20
	client, url, reported := newTestClient(t, false, limits, func(w http.ResponseWriter, r *http.Request) {
		sent++
		if r.URL.Path == "/error" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, `"`+strings.Repeat("x", 60<<10)+`"`)
	})
	var err error
	for i := 0; err == nil && i < 100; i++ {
		_, err = readAnswer(t, client, url+[]string{"/api", "/error"}[i%2])
	}
	require.Len(t, *reported, 1)
	require.ErrorIs(t, err, (*reported)[0])
	assert.Contains(t, err.Error(), "larger than 2 MiB together")
	assert.Equal(t, 35, sent)
	_, err = readAnswer(t, client, url+"/api")
	require.ErrorContains(t, err, "larger than 2 MiB together")
	assert.Equal(t, 35, sent, "nothing is sent any more")
}
