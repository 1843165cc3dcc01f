package readapi

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func newTestClient(t *testing.T, serve http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	c, err := NewClient(server.URL+"/", server.Client())
	require.NoError(t, err)
	return c
}

func TestURLsAreChecked(t *testing.T) {
	for url, want := range map[string]string{
		"https://hub.example.com":      "",
		"https://hub.example.com/ot/":  "",
		"http://127.0.0.1:8443":        "",
		"http://[::1]:8443":            "",
		"http://localhost:1":           "",
		"http://hub.example.com":       "plain text",
		"http://127.0.0.1.example.com": "plain text",
		"hub.example.com":              "is not the URL",
		"https://":                     "is not the URL",
		"ftp://hub":                    "is not the URL",
		"https://hub?x=1":              "is not the URL",
		"https://u:secret@hub":         "is not the URL",
		"https://h\x1b[31m":            "is not the URL",
		"":                             "is not the URL",
	} {
		_, err := NewClient(url, http.DefaultClient)
		if want == "" {
			require.NoError(t, err, url)
			continue
		}
		require.ErrorContains(t, err, want, url)
		assert.NotContains(t, err.Error(), "secret")
		assert.NotContains(t, err.Error(), "\x1b")
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	for name, tt := range map[string]struct {
		status            int
		body, contentType string
		header            http.Header
		want              error
		wantText          string
	}{
		"unauthorized":        {status: 401, body: "Authentication failed", want: ErrUnauthorized, wantText: "log in again"},
		"forbidden":           {status: 403, body: "Authorization denied for user anna", want: ErrForbidden, wantText: "ot-hub-reader"},
		"no such object":      {status: 404, body: `{"error":"there is no MemberCluster x"}`, want: ErrNotFound, wantText: "there is no MemberCluster x"},
		"an older hub":        {status: 404, body: `{"error":"` + UnknownPathMessage + `, only /fleet/v1/members"}`, want: ErrUnsupported, wantText: "upgrade the hub"},
		"an older parameter":  {status: 400, body: `{"error":"/fleet/v1/members takes no parameter state, only limit"}`, want: ErrUnsupported, wantText: "upgrade the hub"},
		"bad request":         {status: 400, body: `{"error":"limit=0: must be a number"}`, want: ErrInvalid, wantText: "limit=0"},
		"nobody elected":      {status: 503, body: `{"error":"no replica of the hub is elected: try again"}`, want: ErrUnavailable, wantText: "no replica"},
		"a proxy's page":      {status: 502, body: "<html><b>Bad</b>", contentType: "text/html", want: ErrUnavailable, wantText: "status 502"},
		"terminal escapes":    {status: 500, body: "\x1b[31mred", want: ErrUnavailable, wantText: "[31mred"},
		"another server":      {status: 302, header: http.Header{"Location": {"https://login.example.com/?secret=1"}}, want: ErrInvalid, wantText: "login.example.com"},
		"not found, no hub":   {status: 404, body: "<html>", contentType: "text/html", want: ErrUnsupported, wantText: "status 404"},
		"a very long message": {status: 400, body: strings.Repeat("x", 100_000), want: ErrInvalid, wantText: "xxx"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestClient(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "99999")
				w.Header().Set("Content-Type", tt.contentType)
				for key, values := range tt.header {
					w.Header()[key] = values
				}
				w.WriteHeader(tt.status)
				_, _ = fmt.Fprint(w, tt.body)
			})
			_, err := c.Summary(t.Context())
			require.ErrorIs(t, err, tt.want)
			require.ErrorContains(t, err, tt.wantText)
			assert.NotContains(t, err.Error(), "\x1b")
			assert.Less(t, len(err.Error()), 2*maxErrorBytes)
			var answered *Error
			require.ErrorAs(t, err, &answered)
			assert.LessOrEqual(t, answered.RetryAfter, maxRetryAfter)
		})
	}
}

func TestRedirectsGetNoCredential(t *testing.T) {
	asked := 0
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer other.Close()
	c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) })
	_, err := c.Summary(t.Context())
	require.Error(t, err)
	assert.Zero(t, asked)
}

func TestUnchangedAnswersAreSentOnce(t *testing.T) {
	sent, version := 0, 1
	c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
		etag := strconv.Quote(strconv.Itoa(version) + r.URL.RawQuery)
		if r.Header.Get("If-None-Match") == etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		sent++
		w.Header().Set("ETag", etag)
		_, _ = fmt.Fprintf(w, `{"members":{"total":%d}}`, version)
	})
	for range 3 {
		s, err := c.Summary(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 1, s.Members.Total)
	}
	assert.Equal(t, 1, sent)
	version = 2
	s, err := c.Summary(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 2, s.Members.Total)
	assert.Equal(t, 2, sent)

	for i := range 2 * maxKeptAnswers {
		_, err := c.MemberImages(t.Context(), "a", strconv.Itoa(i))
		require.NoError(t, err)
	}
	assert.Len(t, c.kept, maxKeptAnswers)
	assert.Len(t, c.keptOrder, maxKeptAnswers)
}

func TestAnswersAreBounded(t *testing.T) {
	c := newTestClient(t, func(w http.ResponseWriter, _ *http.Request) {
		chunk := make([]byte, 1<<20)
		for range MaxAnswerBytes>>20 + 2 {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	_, err := c.Summary(t.Context())
	require.ErrorIs(t, err, ErrTooLarge)
}

func TestAnswersOfOtherServersAreRefused(t *testing.T) {
	c := newTestClient(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "<html>") })
	_, err := c.Summary(t.Context())
	require.ErrorContains(t, err, "is not one of a hub's read API")
}

// serveEvents writes the streams one after the other, and remembers the ids that were asked
// for.
func serveEvents(t *testing.T, streams ...string) (*Client, *[]string) {
	var after []string
	return newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
		at := len(after)
		after = append(after, r.Header.Get("Last-Event-ID"))
		if at >= len(streams) {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = fmt.Fprint(w, streams[at])
	}), &after
}

func TestStreamGoesOnWhereItWasCut(t *testing.T) {
	c, after := serveEvents(t,
		": heartbeat\n\nid: a-1\ndata: {\"seq\":\"a-1\",\"topics\":[\"images\"]}\n\n",
		"id: b-7\ndata: {\"seq\":\"b-7\",\"topics\":[\"members\"],\"reset\":true}\n\n",
	)
	var events []Event
	var failures []error
	for e, err := range c.FollowEvents(t.Context()) {
		if err != nil {
			failures = append(failures, err)
			continue
		}
		events = append(events, e)
	}
	assert.Equal(t, []Event{{Seq: "a-1", Topics: []Topic{TopicImages}}, {Seq: "b-7", Topics: []Topic{TopicMembers}, Reset: true}}, events)
	assert.Equal(t, []string{"", "a-1", "b-7"}, *after)
	require.Len(t, failures, 3)
	require.ErrorIs(t, failures[0], errStreamEnded)
	require.ErrorIs(t, failures[2], ErrForbidden, "what no later attempt mends ends it")
}

func TestStreamEndsWithItsReader(t *testing.T) {
	c, after := serveEvents(t, "data: {\"seq\":\"a-1\"}\n\ndata: {\"seq\":\"a-2\"}\n\n")
	for range c.FollowEvents(t.Context()) {
		break
	}
	assert.Len(t, *after, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range c.FollowEvents(ctx) {
		t.Fatal("nothing is asked for")
	}
}

func TestEachReadsAllPages(t *testing.T) {
	pages := map[string][]string{"": {"a", "b"}, "b": {"c"}}
	var all []string
	for name, err := range Each(func(p Paging) ([]string, string, error) {
		return pages[p.After], map[string]string{"": "b"}[p.After], nil
	}) {
		require.NoError(t, err)
		all = append(all, name)
	}
	assert.Equal(t, []string{"a", "b", "c"}, all)
}

func TestUnknownValuesAreNull(t *testing.T) {
	text, err := json.Marshal(Values{1.5, math.NaN(), 0, 123456789})
	require.NoError(t, err)
	assert.JSONEq(t, "[1.5,null,0,1.23457e+08]", string(text))
	var read Values
	require.NoError(t, json.Unmarshal(text, &read))
	require.Len(t, read, 4)
	assert.True(t, math.IsNaN(read[1]))
	assert.Zero(t, read[2])
	_, err = json.Marshal(Values{math.Inf(1)})
	require.Error(t, err)
}

// Changes and the whole matrix say the same.
func TestMatrixApply(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows, cols := rapid.IntRange(0, 5).Draw(t, "rows"), rapid.IntRange(0, 5).Draw(t, "cols")
		cells := rapid.SliceOfN(rapid.Byte(), rows*cols, rows*cols)
		before := Matrix{Seq: "1", Rows: make([]MatrixRow, rows), Cols: make([]MatrixColumn, cols), Cells: cells.Draw(t, "before")}
		after := cells.Draw(t, "after")
		diff := Matrix{Seq: "2", Since: "1"}
		for i := range after {
			if after[i] != before.Cells[i] {
				diff.Changed, diff.Cells = append(diff.Changed, i), append(diff.Cells, after[i])
			}
		}
		require.NoError(t, before.Apply(&diff))
		assert.Equal(t, "2", before.Seq)
		assert.Equal(t, string(after), string(before.Cells))
		require.ErrorIs(t, before.Apply(&diff), ErrOtherMatrix)
		require.ErrorIs(t, before.Apply(&Matrix{Seq: "3", Since: "2", Changed: []int{rows * cols}, Cells: []byte{1}}), ErrOtherMatrix)
		require.Error(t, before.Apply(&Matrix{Seq: "3", Since: "2", Changed: []int{0}}))
	})
}
