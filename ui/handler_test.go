package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

const testOrigin = "http://127.0.0.1:8080"

// testAPI is an API server that remembers what reaches it.
type testAPI struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
	bodies   []string
	// answer replaces what it answers.
	answer func(w http.ResponseWriter, r *http.Request)
}

func newTestAPI(t *testing.T) *testAPI {
	t.Helper()
	api := &testAPI{}
	api.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		api.mu.Lock()
		api.requests, api.bodies = append(api.requests, r), append(api.bodies, string(body))
		api.mu.Unlock()
		if api.answer != nil {
			api.answer(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"FleetDiskImage"}`)
	}))
	t.Cleanup(api.Close)
	return api
}

func (a *testAPI) reached() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.requests)
}

// newTestHandler returns a handler whose callers have a token, unless they send header Nobody.
func newTestHandler(t *testing.T, api *testAPI) *Handler {
	t.Helper()
	return NewHandler(Options{
		Origin: Origins(testOrigin, "https://ot.example.com"),
		Caller: func(r *http.Request) (*Caller, error) {
			if r.Header.Get("Nobody") != "" {
				return nil, ErrSignedOut
			}
			return NewCaller(&rest.Config{Host: api.URL, BearerToken: "annas"}, r.Header.Get("Test-Key"))
		},
		Reads: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Access-Control-Allow-Origin", "*")
			w.Header().Set("Set-Cookie", "evil=1")
			w.Header().Set("Content-Security-Policy", "default-src *")
			if r.Header.Get("Cookie") != "" || r.Header.Get("Impersonate-User") != "" {
				w.WriteHeader(http.StatusTeapot)
			}
			fmt.Fprint(w, `{"read":true}`)
		}),
		Auth: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Set-Cookie", "session=1")
			w.WriteHeader(http.StatusNoContent)
		}),
		Policy: testPolicy, HubNamespace: "ot-hub", HubVersion: "v1", Mode: func(*http.Request) Mode { return ModeToken },
	})
}

// send sends a request of the app, with changes: "" removes a header.
func send(handler http.Handler, method, target, body string, changes map[string]string) *httptest.ResponseRecorder {
	request := httptest.NewRequestWithContext(context.Background(), method, "/", strings.NewReader(body))
	if body == "" {
		request = httptest.NewRequestWithContext(context.Background(), method, "/", nil)
	}
	if u, err := url.ParseRequestURI(target); err == nil {
		request.URL = u
	}
	request.RequestURI = target
	headers := map[string]string{"Host": "127.0.0.1:8080"}
	if !isRead(method) {
		headers["Ot-Fleet"], headers["Origin"], headers["Sec-Fetch-Site"] = "1", testOrigin, "same-origin"
		headers["Content-Type"] = "application/json"
		if method == http.MethodPatch {
			headers["Content-Type"] = mergePatchType
		}
	}
	for name, value := range changes {
		headers[name] = value
	}
	for name, value := range headers {
		if value != "" {
			request.Header.Set(name, value)
		}
	}
	request.Host = headers["Host"]
	request.Header.Del("Host")
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	return recorder
}

const testImage = "/k8s/apis/pelotech.ot/v1alpha1/fleetdiskimages/win-11"

func TestRequestsOfOtherSitesAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		method, path string
		headers      map[string]string
		want         int
	}{
		"a change of the app":              {"PATCH", testImage, nil, 200},
		"an old browser":                   {"PATCH", testImage, map[string]string{"Sec-Fetch-Site": ""}, 200},
		"by another name of the dashboard": {"PATCH", testImage, map[string]string{"Host": "ot.example.com", "Origin": "https://ot.example.com"}, 200},
		"a read of the app":                {"GET", "/fleet/v1/summary", nil, 200},
		"opened by hand":                   {"GET", "/fleet/v1/summary", map[string]string{"Sec-Fetch-Site": "none"}, 200},
		"a link from elsewhere":            {"GET", "/clusters/bergen", map[string]string{"Sec-Fetch-Site": "cross-site"}, 200},

		"rebound DNS":                         {"PATCH", testImage, map[string]string{"Host": "evil.example", "Origin": "http://evil.example"}, 421},
		"rebound DNS, a read":                 {"GET", "/fleet/v1/summary", map[string]string{"Host": "evil.example:8080"}, 421},
		"rebound DNS, the app":                {"GET", "/", map[string]string{"Host": "evil.example:8080"}, 421},
		"rebound DNS, who am I":               {"GET", "/auth/me", map[string]string{"Host": "evil.example"}, 421},
		"another port":                        {"GET", "/fleet/v1/summary", map[string]string{"Host": "127.0.0.1:8081"}, 421},
		"no Host":                             {"GET", "/fleet/v1/summary", map[string]string{"Host": ""}, 421},
		"a Host that begins as ours":          {"GET", "/", map[string]string{"Host": "127.0.0.1:8080.evil.example"}, 421},
		"no header of the app":                {"PATCH", testImage, map[string]string{"Ot-Fleet": ""}, 403},
		"another value of it":                 {"PATCH", testImage, map[string]string{"Ot-Fleet": "true"}, 403},
		"a foreign Origin":                    {"PATCH", testImage, map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": ""}, 403},
		"the Origin of a file":                {"PATCH", testImage, map[string]string{"Origin": "null", "Sec-Fetch-Site": ""}, 403},
		"no Origin":                           {"PATCH", testImage, map[string]string{"Origin": ""}, 403},
		"another scheme":                      {"PATCH", testImage, map[string]string{"Origin": "https://127.0.0.1:8080"}, 403},
		"the Origin of another port":          {"PATCH", testImage, map[string]string{"Origin": "http://127.0.0.1:9999", "Sec-Fetch-Site": "same-site"}, 403},
		"a page of another port, as ours":     {"PATCH", testImage, map[string]string{"Sec-Fetch-Site": "same-site"}, 403},
		"the Origin of our other name":        {"PATCH", testImage, map[string]string{"Origin": "https://ot.example.com"}, 403},
		"a form":                              {"POST", "/k8s/apis/pelotech.ot/v1alpha1/imageprunes", map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, 415},
		"a form of text":                      {"POST", "/k8s/apis/pelotech.ot/v1alpha1/imageprunes", map[string]string{"Content-Type": "text/plain"}, 415},
		"signing in from elsewhere":           {"POST", "/auth/login", map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 403},
		"signing in by a form":                {"POST", "/auth/login", map[string]string{"Ot-Fleet": ""}, 403},
		"signing in":                          {"POST", "/auth/login", nil, 204},
		"a page of elsewhere that reads":      {"GET", "/fleet/v1/summary", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		"a page of another port that reads":   {"GET", testImage, map[string]string{"Sec-Fetch-Site": "same-site"}, 403},
		"a page of elsewhere: who am I":       {"GET", "/auth/me", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		"a method that another one overrides": {"POST", testImage, map[string]string{"X-HTTP-Method-Override": "PATCH", "Content-Type": mergePatchType}, 405},
		"a write to the read API":             {"POST", "/fleet/v1/summary", nil, 405},
		"a write to a page":                   {"POST", "/clusters", nil, 405},
		"OPTIONS, as CORS asks":               {"OPTIONS", testImage, map[string]string{"Origin": "https://evil.example", "Ot-Fleet": "", "Sec-Fetch-Site": "cross-site"}, 403},
		"TRACE":                               {"TRACE", testImage, nil, 405},

		"nobody reads":           {"GET", "/fleet/v1/summary", map[string]string{"Nobody": "1"}, 401},
		"nobody reads an object": {"GET", testImage, map[string]string{"Nobody": "1"}, 401},
		"nobody writes":          {"PATCH", testImage, map[string]string{"Nobody": "1"}, 401},
		"nobody is who":          {"GET", "/auth/me", map[string]string{"Nobody": "1"}, 401},
	} {
		t.Run(name, func(t *testing.T) {
			api := newTestAPI(t)
			body := ""
			if !isRead(tt.method) {
				body = "{}"
			}
			answer := send(newTestHandler(t, api), tt.method, tt.path, body, tt.headers)
			require.Equal(t, tt.want, answer.Code, answer.Body.String())
			for header, value := range securityHeaders {
				assert.Equal(t, []string{value}, answer.Header().Values(header), "on every answer")
			}
			assert.Empty(t, answer.Header().Get("Access-Control-Allow-Origin"))
			if tt.want >= 400 {
				assert.Zero(t, api.reached())
				var refused struct{ Error string }
				require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &refused))
				assert.NotEmpty(t, refused.Error)
			}
		})
	}
}

func TestReadsKeepTheirCaller(t *testing.T) {
	handler := newTestHandler(t, newTestAPI(t))
	answer := send(handler, "GET", "/fleet/v1/summary?limit=1", "", map[string]string{"Cookie": "a=b", "Impersonate-User": "root"})
	require.Equal(t, http.StatusOK, answer.Code)
	assert.Empty(t, answer.Header().Get("Set-Cookie"), "the read API signs nobody in")
	assert.Equal(t, "private, no-cache", answer.Header().Get("Cache-Control"), "a browser may keep it for its ETag, a proxy may not")
	var caller *Caller
	handler.Reads = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { caller = CallerFrom(r.Context()) })
	send(handler, "GET", "/fleet/v1/summary", "", map[string]string{"Test-Key": "anna"})
	require.NotNil(t, caller)
	assert.Equal(t, "anna", caller.Key)
}

// A flush begins an answer, as a stream of events does; it has all headers, too.
func TestStreamsHaveTheHeaders(t *testing.T) {
	handler := newTestHandler(t, newTestAPI(t))
	handler.Reads = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		assert.NoError(t, http.NewResponseController(w).Flush())
		fmt.Fprint(w, ": opened\n\n")
		assert.NoError(t, http.NewResponseController(w).Flush())
	})
	answer := send(handler, "GET", "/fleet/v1/events", "", nil)
	assert.True(t, answer.Flushed)
	assert.Equal(t, "text/event-stream", answer.Header().Get("Content-Type"))
	assert.NotEmpty(t, answer.Result().Header.Get("Content-Security-Policy"))
}

func TestBodiesAreBounded(t *testing.T) {
	api := newTestAPI(t)
	handler := newTestHandler(t, api)
	large := `"` + strings.Repeat("x", maxBodyBytes) + `"`
	assert.Equal(t, http.StatusRequestEntityTooLarge, send(handler, "PATCH", testImage, large, nil).Code)
	// Without its length, as a client that hides it.
	request := httptest.NewRequestWithContext(t.Context(), "PATCH", testImage, io.MultiReader(strings.NewReader(large)))
	request.Host = "127.0.0.1:8080"
	for name, value := range map[string]string{"Ot-Fleet": "1", "Origin": testOrigin, "Content-Type": mergePatchType} {
		request.Header.Set(name, value)
	}
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	assert.Equal(t, http.StatusRequestEntityTooLarge, recorder.Code)
	assert.Equal(t, http.StatusBadRequest, send(handler, "GET", testImage, "{}", nil).Code, "a read has no body")
	assert.Zero(t, api.reached())
}

func TestMe(t *testing.T) {
	api := newTestAPI(t)
	asked := map[string]int{}
	api.answer = func(w http.ResponseWriter, r *http.Request) {
		api.mu.Lock()
		defer api.mu.Unlock()
		asked[r.URL.Path]++
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		if strings.HasSuffix(r.URL.Path, "selfsubjectreviews") {
			fmt.Fprint(w, `{"status":{"userInfo":{"username":"anna\u001b[31m","groups":["farm"]}}}`)
			return
		}
		body := api.bodies[len(api.bodies)-1]
		for i := range api.requests {
			if api.requests[i] == r {
				body = api.bodies[i]
			}
		}
		allowed := strings.Contains(body, `"verb":"approve"`) || strings.Contains(body, `"verb":"patch"`) && strings.Contains(body, "fleetdiskimages") ||
			strings.Contains(body, `"namespace":"sync-operator","verb":"patch","version":"v1","resource":"configmaps","name":"sync-operator-policy"`)
		fmt.Fprintf(w, `{"status":{"allowed":%t}}`, allowed)
	}
	handler := newTestHandler(t, api)
	getMe := func(key string) (me Me) {
		answer := send(handler, "GET", "/auth/me", "", map[string]string{"Test-Key": key})
		require.Equal(t, http.StatusOK, answer.Code, answer.Body.String())
		assert.Equal(t, "no-store", answer.Header().Get("Cache-Control"))
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &me))
		return me
	}
	me := getMe("anna")
	assert.NotContains(t, me.User, "\x1b")
	assert.Equal(t, []string{"farm"}, me.Groups)
	assert.True(t, me.SignOut)
	assert.Equal(t, testPolicy.String(), me.PolicyNamespace+"/"+me.PolicyName)
	may := map[string]bool{}
	for _, p := range me.May {
		may[p.Verb+" "+p.Resource] = p.Allowed
	}
	assert.Equal(t, map[string]bool{
		"get fleet": false, "approve fleetdiskimages": true, "update fleetdiskimages": true, "create prunereports": false,
		"approve imageprunes": false, "update imageprunes": false, "delete imageprunes": false, "update memberclusters": false,
		"update configmaps": true, "create configmaps": false,
	}, may, "an approval of a prune creates it, too")
	getMe("anna")
	assert.Equal(t, 1, asked["/apis/authentication.k8s.io/v1/selfsubjectreviews"], "remembered for a while")
	getMe("bob")
	assert.Equal(t, 2, asked["/apis/authentication.k8s.io/v1/selfsubjectreviews"], "of each credential for itself")
	for _, r := range api.requests {
		assert.Equal(t, "Bearer annas", r.Header.Get("Authorization"))
	}

	api.answer = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }
	answer := send(handler, "GET", "/auth/me", "", map[string]string{"Test-Key": "carl"})
	assert.Equal(t, http.StatusUnauthorized, answer.Code)
	api.Close()
	answer = send(handler, "GET", "/auth/me", "", map[string]string{"Test-Key": "dora"})
	assert.Equal(t, http.StatusBadGateway, answer.Code, "what is unknown is no refusal")
}

func TestCallersAreForgotten(t *testing.T) {
	var c identityCache
	for i := range 3 * maxIdentities {
		c.add(fmt.Sprint(i), &identity{})
	}
	assert.LessOrEqual(t, len(c.kept), maxIdentities)
}
