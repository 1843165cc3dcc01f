package ui

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLongQuestions(t *testing.T) {
	const path = "/fleet/v1/blastradius"
	for name, tt := range map[string]struct {
		method, path, body string
		headers            map[string]string
		want               int
		wantQuery          string
	}{
		"a policy":                {"POST", path, `{"policy":"{\"concurrency\":\"4\"}","limit":"100"}`, nil, 200, "limit=100&policy=%7B%22concurrency%22%3A%224%22%7D"},
		"names of a prune":        {"POST", "/fleet/v1/prunereports/groups", `{"images":"a/b,c/d"}`, nil, 200, "images=a%2Fb%2Cc%2Fd"},
		"in the address":          {"GET", path + "?policy=%7B%7D", "", nil, 200, "policy=%7B%7D"},
		"of another site":         {"POST", path, "{}", map[string]string{"Origin": "https://evil.example"}, 403, ""},
		"without the header":      {"POST", path, "{}", map[string]string{"Ot-Fleet": ""}, 403, ""},
		"of nobody":               {"POST", path, "{}", map[string]string{"Nobody": "1"}, 401, ""},
		"by a form":               {"POST", path, "policy=x", map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, 415, ""},
		"by both":                 {"POST", path + "?limit=1", "{}", nil, 400, ""},
		"no parameters":           {"POST", path, "[]", nil, 400, ""},
		"a parameter is no text":  {"POST", path, `{"limit":5}`, nil, 400, ""},
		"too long":                {"POST", path, `{"policy":"` + strings.Repeat("x", maxBodyBytes) + `"}`, nil, 413, ""},
		"another question":        {"POST", "/fleet/v1/why", "{}", nil, 405, ""},
		"by another method":       {"PUT", path, "{}", nil, 405, ""},
		"a path that begins so":   {"POST", path + "/x", "{}", nil, 405, ""},
		"the stream, which stays": {"POST", "/fleet/v1/events", "{}", nil, 405, ""},
	} {
		t.Run(name, func(t *testing.T) {
			handler := newTestHandler(t, newTestAPI(t))
			var read *http.Request
			handler.Reads = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { read = r })
			answer := send(handler, tt.method, tt.path, tt.body, tt.headers)
			require.Equal(t, tt.want, answer.Code, answer.Body.String())
			if tt.want != http.StatusOK {
				assert.Nil(t, read)
				return
			}
			require.NotNil(t, read)
			assert.Equal(t, http.MethodGet, read.Method, "reading takes the right to get")
			assert.Equal(t, tt.wantQuery, read.URL.RawQuery)
			assert.NotNil(t, CallerFrom(read.Context()))
			assert.Empty(t, read.Header.Get("Content-Type"))
			rest, err := io.ReadAll(read.Body)
			require.NoError(t, err)
			assert.Empty(t, rest)
		})
	}
}

// An Ingress with nginx's defaults takes no line of more than 8 KiB.
func TestLongQuestionsPassProxies(t *testing.T) {
	handler := newTestHandler(t, newTestAPI(t))
	handler.Reads = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Query().Get("policy")) })
	hub := httptest.NewServer(handler)
	defer hub.Close()
	target, err := url.Parse(hub.URL)
	require.NoError(t, err)
	handler.Origin = Origins(hub.URL)
	proxy := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(target))
	const slop = 4096 // that net/http adds
	proxy.Config.MaxHeaderBytes = 8<<10 - slop
	proxy.Start()
	defer proxy.Close()
	policy := strings.Repeat("overrides: x\n", 1000)

	ask := func(method, path, body string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), method, proxy.URL+path, strings.NewReader(body))
		require.NoError(t, err)
		request.Host = target.Host
		request.Header.Set("Origin", hub.URL)
		request.Header.Set(WriteHeader, "1")
		request.Header.Set("Content-Type", jsonType)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer func() { _ = response.Body.Close() }()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(text)
	}
	status, _ := ask("GET", "/fleet/v1/blastradius?policy="+url.QueryEscape(policy), "")
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, status, "so that this test tests something")
	status, text := ask("POST", "/fleet/v1/blastradius", `{"policy":"`+strings.ReplaceAll(policy, "\n", `\n`)+`"}`)
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, policy, text)
}
