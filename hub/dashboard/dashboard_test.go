package dashboard

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/ui"
)

const (
	hubToken = "token-of-the-hub"
	testHost = "fleet.example.com"
	// annaToken is of a person who may read, lenaToken of one who may not.
	annaToken = "token-of-anna"
	benToken  = "token-of-ben"
	lenaToken = "token-of-lena"
)

// users are those whose tokens the API server accepts.
var users = map[string]string{annaToken: "anna", benToken: "ben", lenaToken: "lena", hubToken: "hub"}

// sentRequest is a request that reached the API server.
type sentRequest struct {
	method, path string
	header       http.Header
}

// testDashboard is a dashboard, and an API server that notes what it is asked.
type testDashboard struct {
	config  *rest.Config
	options Options
	http.Handler
	keys    *KeyStore
	mu      sync.Mutex
	sent    []sentRequest
	down    bool
	reads   []http.Header
	counted *prometheus.Registry
}

func newTestDashboard(t *testing.T) *testDashboard {
	t.Helper()
	d := &testDashboard{counted: prometheus.NewRegistry()}
	server := httptest.NewServer(http.HandlerFunc(d.serveAPI))
	t.Cleanup(server.Close)
	cfg := &rest.Config{Host: server.URL, BearerToken: hubToken, Timeout: 10 * time.Second, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	access, err := NewAccess(cfg)
	require.NoError(t, err)
	d.keys = &KeyStore{Live: fake.NewClientBuilder().WithScheme(scheme.Scheme).Build(), Namespace: "ot-hub"}
	read := http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.reads = append(d.reads, request.Header.Clone())
		_, _ = io.WriteString(w, "{}")
	})
	d.config, d.options = cfg, Options{
		APIServer: cfg, Access: access, Keys: d.keys, Hosts: []string{testHost}, Metrics: metrics.NewDashboard(d.counted),
		Reads: map[string]http.Handler{"/fleet/v1/": read, "/fleet/v1/summary": read},
	}
	d.Handler, err = NewHandler(d.options)
	require.NoError(t, err)
	return d
}

// serveAPI judges tokens and accesses as an API server does.
func (d *testDashboard) serveAPI(w http.ResponseWriter, request *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sent = append(d.sent, sentRequest{request.Method, request.URL.Path, request.Header.Clone()})
	if d.down {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	caller := users[strings.TrimPrefix(request.Header.Get("Authorization"), "Bearer ")]
	w.Header().Set("Content-Type", "application/json")
	answer := func(object any) { _ = json.NewEncoder(w).Encode(object) }
	_, kind, _ := strings.Cut(strings.TrimPrefix(request.URL.Path, "/apis/"), "/v1/")
	switch {
	case caller == "":
		w.WriteHeader(http.StatusUnauthorized)
		answer(map[string]any{"kind": "Status", "message": "Unauthorized"})
	case kind == "tokenreviews":
		review := &authenticationv1.TokenReview{}
		_ = json.NewDecoder(request.Body).Decode(review)
		review.Status.User.Username = users[review.Spec.Token]
		if review.Status.Authenticated = review.Status.User.Username != ""; !review.Status.Authenticated {
			review.Status.Error = "invalid bearer token"
		}
		answer(review)
	case kind == "subjectaccessreviews":
		review := &authorizationv1.SubjectAccessReview{}
		_ = json.NewDecoder(request.Body).Decode(review)
		review.Status.Allowed = review.Spec.User != "lena" && review.Spec.NonResourceAttributes.Verb == "get"
		answer(review)
	case kind == "selfsubjectreviews":
		answer(&authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: caller}}})
	case kind == "selfsubjectaccessreviews":
		answer(&authorizationv1.SelfSubjectAccessReview{})
	default:
		w.WriteHeader(http.StatusForbidden)
		answer(map[string]any{"kind": "Status", "message": `fleetdiskimages.pelotech.ot "ubuntu" is forbidden: User "` + caller + `" cannot patch`})
	}
}

func (d *testDashboard) takeSent() []sentRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	sent := d.sent
	d.sent = nil
	return sent
}

func (d *testDashboard) takeReads() []http.Header {
	d.mu.Lock()
	defer d.mu.Unlock()
	reads := d.reads
	d.reads = nil
	return reads
}

// sendRequest sends a request as a page of the dashboard does.
func (d *testDashboard) sendRequest(method, path, body string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	request := httptest.NewRequest(method, "https://"+testHost+path, strings.NewReader(body))
	if method != http.MethodGet {
		request.Header.Set("Ot-Fleet", "1")
		request.Header.Set("Origin", "https://"+testHost)
		request.Header.Set("Content-Type", "application/json")
	}
	for _, do := range change {
		do(request)
	}
	recorder := httptest.NewRecorder()
	d.ServeHTTP(recorder, request)
	return recorder
}

// cookiesOf returns the cookies that an answer sets.
func cookiesOf(t *testing.T, answer *httptest.ResponseRecorder) (cookies []*http.Cookie) {
	t.Helper()
	for _, line := range answer.Header().Values("Set-Cookie") {
		cookie, err := http.ParseSetCookie(line)
		require.NoError(t, err)
		cookies = append(cookies, cookie)
	}
	return cookies
}

func withHeader(name, value string) func(*http.Request) {
	return func(request *http.Request) { request.Header.Add(name, value) }
}

func withCookies(cookies []*http.Cookie) func(*http.Request) {
	return func(request *http.Request) {
		for _, cookie := range cookies {
			if cookie.MaxAge >= 0 {
				request.AddCookie(cookie)
			}
		}
	}
}

func (d *testDashboard) login(t *testing.T, token string) []*http.Cookie {
	t.Helper()
	response := d.sendRequest(http.MethodPost, "/auth/login", `{"token":"`+token+`"}`)
	require.Equal(t, http.StatusNoContent, response.Code, response.Body.String())
	return cookiesOf(t, response)
}

func userOfAnswer(t *testing.T, response *httptest.ResponseRecorder) (user string, mode ui.Mode) {
	t.Helper()
	var me ui.Me
	require.Equal(t, http.StatusOK, response.Code)
	require.NoError(t, json.NewDecoder(response.Body).Decode(&me))
	return me.User, me.Mode
}

func TestSignIn(t *testing.T) {
	for name, tt := range map[string]struct {
		body       string
		change     []func(*http.Request)
		wantStatus int
		wantText   string
	}{
		"a person who may read":     {`{"token":"token-of-anna"}`, nil, http.StatusNoContent, ""},
		"with the scheme before it": {`{"token":" Bearer token-of-anna\n"}`, nil, http.StatusNoContent, ""},
		"an unknown token":          {`{"token":"guessed"}`, nil, http.StatusUnauthorized, "the API server does not accept the token: it is unknown or has ended"},
		"a person who may not read": {`{"token":"token-of-lena"}`, nil, http.StatusForbidden, "lena may not get /fleet/v1/summary: that takes ClusterRole ot-hub-reader"},
		"two words":                 {`{"token":"token of anna"}`, nil, http.StatusBadRequest, "this is not a bearer token"},
		"no token":                  {`{}`, nil, http.StatusBadRequest, "this is not a bearer token"},
		"no JSON":                   {`token=token-of-anna`, nil, http.StatusBadRequest, "the body is not JSON"},
		"a token of 13 KiB":         {`{"token":"` + randomToken(13<<10) + `"}`, nil, http.StatusBadRequest, "the token is longer than 12 KiB"},
		"a token of 70 KiB":         {`{"token":"` + randomToken(70<<10) + `"}`, nil, http.StatusRequestEntityTooLarge, "larger than 64 KiB"},
		"from another site":         {`{"token":"token-of-anna"}`, []func(*http.Request){func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }}, http.StatusForbidden, "Origin"},
		"of a form":                 {`{"token":"token-of-anna"}`, []func(*http.Request){func(r *http.Request) { r.Header.Del("Ot-Fleet") }}, http.StatusForbidden, "Ot-Fleet"},
		"to another host":           {`{"token":"token-of-anna"}`, []func(*http.Request){func(r *http.Request) { r.Host = "evil.example" }}, http.StatusMisdirectedRequest, "not the address"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newTestDashboard(t)
			response := d.sendRequest(http.MethodPost, "/auth/login", tt.body, tt.change...)
			text := response.Body.String()
			assert.Equal(t, tt.wantStatus, response.Code, text)
			assert.Contains(t, text, tt.wantText)
			assert.NotContains(t, text, "token-of-anna")
			assert.Equal(t, tt.wantStatus == http.StatusNoContent, len(cookiesOf(t, response)) > 0, "cookies")
			for _, request := range d.takeSent() {
				assert.Equal(t, "Bearer "+hubToken, request.header.Get("Authorization"), "reviews are the hub's: %s", request.path)
				assert.Contains(t, request.path, "reviews")
			}
		})
	}
}

// The token in Authorization wins over the cookie, and nothing else of a request says who it is of.
func TestWhoARequestIsOf(t *testing.T) {
	d := newTestDashboard(t)
	anna := withCookies(d.login(t, annaToken))
	for name, tt := range map[string]struct {
		change   []func(*http.Request)
		want     string
		wantMode ui.Mode
	}{
		"nobody":                         {},
		"the cookie":                     {[]func(*http.Request){anna}, "anna", ui.ModeToken},
		"a proxy":                        {[]func(*http.Request){withHeader("Authorization", "Bearer "+benToken)}, "ben", ui.ModeProxy},
		"a proxy, and the cookie":        {[]func(*http.Request){anna, withHeader("Authorization", "Bearer "+benToken)}, "ben", ui.ModeProxy},
		"an ended token, and the cookie": {[]func(*http.Request){anna, withHeader("Authorization", "Bearer ended")}, "", ""},
		"basic of an ingress":            {[]func(*http.Request){anna, withHeader("Authorization", "Basic YTpi")}, "anna", ui.ModeToken},
		"two headers":                    {[]func(*http.Request){anna, withHeader("Authorization", "Bearer "+benToken), withHeader("Authorization", "Bearer "+annaToken)}, "", ""},
		"an empty one, and the cookie":   {[]func(*http.Request){anna, withHeader("Authorization", "Bearer")}, "anna", ui.ModeToken},
		"a user in X-Remote-User":        {[]func(*http.Request){withHeader("X-Remote-User", "admin"), withHeader("X-Remote-Group", "system:masters")}, "", ""},
		"a user in X-Forwarded-User":     {[]func(*http.Request){withHeader("X-Forwarded-User", "admin"), withHeader("X-Forwarded-Access-Token", annaToken), withHeader("X-Auth-Request-User", "anna")}, "", ""},
		"somebody impersonated":          {[]func(*http.Request){anna, withHeader("Impersonate-User", "admin"), withHeader("Impersonate-Group", "system:masters")}, "anna", ui.ModeToken},
		"a token in the query":           {nil, "", ""},
		"a token for websockets":         {[]func(*http.Request){withHeader("Connection", "Upgrade"), withHeader("Upgrade", "websocket"), withHeader("Sec-WebSocket-Protocol", "base64url.bearer.authorization.k8s.io.dG9rZW4tb2YtYW5uYQ")}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			d.takeSent()
			for _, path := range []string{"/auth/me?access_token=" + annaToken, "/fleet/v1/summary", "/k8s/apis/pelotech.ot/v1alpha1/fleetdiskimages/ubuntu"} {
				d.takeReads()
				response := d.sendRequest(http.MethodGet, path, "", tt.change...)
				if tt.want == "" {
					assert.Equal(t, http.StatusUnauthorized, response.Code, path)
					assert.Empty(t, d.takeReads())
					continue
				}
				assert.NotEqual(t, http.StatusUnauthorized, response.Code, path)
				switch path {
				case "/fleet/v1/summary":
					reads := d.takeReads()
					require.Len(t, reads, 1)
					assert.Equal(t, []string{"Authorization"}, headerNames(reads[0]))
					assert.Equal(t, tt.want, users[strings.TrimPrefix(reads[0].Get("Authorization"), "Bearer ")], "the read API judges the same token again")
				default:
					if strings.HasPrefix(path, "/auth/me") {
						user, mode := userOfAnswer(t, response)
						assert.Equal(t, tt.want, user)
						assert.Equal(t, tt.wantMode, mode)
					}
				}
			}
			for _, request := range d.takeSent() {
				of := users[strings.TrimPrefix(request.header.Get("Authorization"), "Bearer ")]
				if strings.HasSuffix(request.path, "/tokenreviews") || strings.HasSuffix(request.path, "/subjectaccessreviews") {
					assert.Equal(t, "hub", of, request.path)
				} else {
					assert.Equal(t, tt.want, of, "with the caller's own token: %s", request.path)
				}
				for _, name := range headerNames(request.header) {
					assert.False(t, strings.HasPrefix(name, "Impersonate") || strings.HasPrefix(name, "X-") || name == "Cookie", "%s of %s", name, request.path)
				}
			}
		})
	}
}

func headerNames(header http.Header) (names []string) {
	for name := range header {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Headers that reads need pass, cookies and all others do not.
func TestReadAPIGetsNoOtherHeaders(t *testing.T) {
	d := newTestDashboard(t)
	anna := withCookies(d.login(t, annaToken))
	response := d.sendRequest(http.MethodGet, "/fleet/v1/events", "", anna, withHeader("Last-Event-ID", "a.1"), withHeader("If-None-Match", `"x"`), withHeader("Ot-Hub-Forwarded", "true"), withHeader("X-Forwarded-For", "192.0.2.1"))
	require.Equal(t, http.StatusOK, response.Code)
	reads := d.takeReads()
	require.Len(t, reads, 1)
	assert.Equal(t, []string{"Authorization", "If-None-Match", "Last-Event-Id"}, headerNames(reads[0]))
}

// The viewer's forged write reaches the API server with the viewer's token, and its refusal comes
// back in its own words.
func TestWritesAreTheCallersOwn(t *testing.T) {
	d := newTestDashboard(t)
	anna := withCookies(d.login(t, annaToken))
	d.takeSent()
	response := d.sendRequest(http.MethodPatch, "/k8s/apis/pelotech.ot/v1alpha1/fleetdiskimages/ubuntu", `{"spec":{}}`, anna, func(request *http.Request) {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	})
	assert.Equal(t, http.StatusForbidden, response.Code)
	assert.Contains(t, response.Body.String(), `User \"anna\" cannot patch`)
	sent := d.takeSent()
	require.Len(t, sent, 1)
	assert.Equal(t, "Bearer "+annaToken, sent[0].header.Get("Authorization"))
}

// A person without the right to read is told which, also where a proxy signs them in.
func TestReadWithoutTheRight(t *testing.T) {
	d := newTestDashboard(t)
	response := d.sendRequest(http.MethodGet, "/fleet/v1/summary", "", withHeader("Authorization", "Bearer "+lenaToken))
	assert.Equal(t, http.StatusForbidden, response.Code)
	assert.JSONEq(t, `{"error":"lena may not get /fleet/v1/summary: that takes ClusterRole ot-hub-reader, by a ClusterRoleBinding"}`, response.Body.String())
	assert.Empty(t, d.takeReads())
}

// An API server that does not answer is none that refuses: nobody is signed out by it.
func TestAPIServerThatDoesNotAnswer(t *testing.T) {
	d := newTestDashboard(t)
	anna := withCookies(d.login(t, annaToken))
	d.mu.Lock()
	d.down = true
	d.mu.Unlock()
	response := d.sendRequest(http.MethodGet, "/fleet/v1/summary", "", anna)
	assert.Equal(t, http.StatusOK, response.Code, "who it is was known a moment ago")
	response = d.sendRequest(http.MethodGet, "/fleet/v1/summary", "", withHeader("Authorization", "Bearer "+benToken))
	assert.Equal(t, http.StatusServiceUnavailable, response.Code)
	assert.Equal(t, "2", response.Header().Get("Retry-After"))
	for range 2 * failuresOfAddress {
		response = d.sendRequest(http.MethodPost, "/auth/login", `{"token":"`+benToken+`"}`)
		require.Equal(t, http.StatusServiceUnavailable, response.Code, "it is no failure of the person")
	}
}

// Tokens cannot be tried without end, and who is signed in notices nothing.
func TestFailedSignInsAreLimited(t *testing.T) {
	d := newTestDashboard(t)
	anna := withCookies(d.login(t, annaToken))
	d.takeSent()
	statuses := map[int]int{}
	for i := range 2 * failuresOfAddress {
		response := d.sendRequest(http.MethodPost, "/auth/login", `{"token":"guess-`+strings.Repeat("x", i+1)+`"}`)
		statuses[response.Code]++
		if response.Code == http.StatusTooManyRequests {
			assert.NotEmpty(t, response.Header().Get("Retry-After"))
		}
	}
	assert.Len(t, statuses, 2)
	assert.GreaterOrEqual(t, statuses[http.StatusUnauthorized], failuresOfAddress)
	assert.Positive(t, statuses[http.StatusTooManyRequests])
	assert.Len(t, d.takeSent(), statuses[http.StatusUnauthorized], "the API server is not asked about the others")
	assert.Equal(t, http.StatusOK, d.sendRequest(http.MethodGet, "/fleet/v1/summary", "", anna).Code)

	// Nor does who comes to a replica that does not know the token: a sealed one is no guess.
	access, err := NewAccess(d.config)
	require.NoError(t, err)
	o := d.options
	o.Access = access
	other := &testDashboard{counted: d.counted, keys: d.keys}
	other.Handler, err = NewHandler(o)
	require.NoError(t, err)
	for i := range 2 * failuresOfAddress {
		other.sendRequest(http.MethodPost, "/auth/login", `{"token":"guess-`+strings.Repeat("y", i+1)+`"}`)
	}
	assert.Equal(t, http.StatusOK, other.sendRequest(http.MethodGet, "/fleet/v1/summary", "", anna).Code)
}

// Signing out removes the cookies from the browser. A copy of them works until the token ends: only
// who issued the token can revoke it.
func TestSignOut(t *testing.T) {
	d := newTestDashboard(t)
	kept := withCookies(d.login(t, annaToken))
	response := d.sendRequest(http.MethodPost, "/auth/logout", "", kept)
	require.Equal(t, http.StatusNoContent, response.Code)
	require.Len(t, cookiesOf(t, response), maxCookies)
	for _, cookie := range cookiesOf(t, response) {
		assert.Negative(t, cookie.MaxAge)
	}
	assert.Equal(t, http.StatusOK, d.sendRequest(http.MethodGet, "/fleet/v1/summary", "", kept).Code)
	assert.Equal(t, http.StatusMethodNotAllowed, d.sendRequest(http.MethodGet, "/auth/logout", "").Code)
	assert.Equal(t, http.StatusForbidden, d.sendRequest(http.MethodPost, "/auth/logout", "", func(r *http.Request) { r.Header.Del("Origin") }).Code)
	assert.Equal(t, http.StatusNotFound, d.sendRequest(http.MethodPost, "/auth/key", "{}").Code, "that is of kubectl ot dashboard")
}

func TestHosts(t *testing.T) {
	hosts := knownHosts{"localhost", "127.0.0.1", "::1", testHost}
	for host, want := range map[string]string{
		"localhost:8443": "https://localhost:8443", "LOCALHOST": "https://localhost", "127.0.0.1:1": "https://127.0.0.1:1",
		"[::1]:8443": "https://[::1]:8443", "fleet.example.com": "https://fleet.example.com", "fleet.example.com:443": "https://fleet.example.com",
		"evil.example": "", "fleet.example.com.evil.example": "", "": "", "127.0.0.1.evil.example:8443": "", "localhost:8443:1": "", "fleet.example.com@evil.example": "", "[::1": "https://[::1",
	} {
		origin, known := hosts.origin(host)
		if host == "[::1" {
			continue
		}
		assert.Equal(t, want, origin, host)
		assert.Equal(t, want != "", known, host)
	}
}

// Tokens in Authorization are tried no oftener than pasted ones, on every path, and a person whose
// token was accepted from the same address notices nothing.
func TestTokensInHeadersAreLimited(t *testing.T) {
	for _, path := range []string{"/auth/me", "/fleet/v1/summary", "/k8s/apis/pelotech.ot/v1alpha1/fleetdiskimages/ubuntu"} {
		d := newTestDashboard(t)
		ben := withHeader("Authorization", "Bearer "+benToken)
		require.Equal(t, http.StatusOK, d.sendRequest(http.MethodGet, "/fleet/v1/summary", "", ben).Code)
		d.takeSent()
		var last *httptest.ResponseRecorder
		for i := range 3 * failuresOfAddress {
			last = d.sendRequest(http.MethodGet, path, "", withHeader("Authorization", "Bearer "+randomToken(i+1)))
			require.GreaterOrEqual(t, last.Code, http.StatusBadRequest)
		}
		assert.Equal(t, http.StatusTooManyRequests, last.Code, path)
		assert.NotEmpty(t, last.Header().Get("Retry-After"))
		assert.Less(t, len(d.takeSent()), 2*failuresOfAddress, "the API server is not asked about the others")
		assert.Equal(t, http.StatusOK, d.sendRequest(http.MethodGet, "/fleet/v1/summary", "", ben).Code)
	}
}

// Who may read nothing cannot make up questions for the API server: all paths that there are not
// are one.
func TestUnknownPathsAreOneQuestion(t *testing.T) {
	d := newTestDashboard(t)
	anna := withCookies(d.login(t, annaToken))
	d.takeSent()
	for i := range 20 {
		d.sendRequest(http.MethodGet, "/fleet/v1/"+strings.Repeat("a", i+1), "", anna)
	}
	assert.LessOrEqual(t, len(d.takeSent()), 1)
}

// A token that says that it has ended is not asked about, also where another clock accepts it.
func TestEndedTokenIsNotAskedAbout(t *testing.T) {
	d := newTestDashboard(t)
	ended := jwt(t, map[string]any{"exp": time.Now().Add(-time.Hour).Unix()})
	d.mu.Lock()
	users[ended] = "anna"
	d.mu.Unlock()
	t.Cleanup(func() { delete(users, ended) })
	for _, path := range []string{"/auth/me", "/fleet/v1/summary"} {
		response := d.sendRequest(http.MethodGet, path, "", withHeader("Authorization", "Bearer "+ended))
		assert.Equal(t, http.StatusUnauthorized, response.Code, path)
	}
	assert.Empty(t, d.takeSent())
}

// A person whose cookie cannot be read for want of keys has to try again, and is not signed out.
func TestCookiesWithoutKeys(t *testing.T) {
	d := newTestDashboard(t)
	anna := withCookies(d.login(t, annaToken))
	reads := 0
	d.keys.keys, d.keys.Live = keys{}, &countingClient{Client: d.keys.Live, reads: &reads, err: errors.New("connection refused")}
	response := d.sendRequest(http.MethodGet, "/fleet/v1/summary", "", anna)
	assert.Equal(t, http.StatusServiceUnavailable, response.Code)
	assert.Equal(t, "2", response.Header().Get("Retry-After"))
	assert.NotContains(t, response.Body.String(), "connection refused")
}
