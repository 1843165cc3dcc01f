package dashboard

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/ui"
)

// newReplica returns a replica of the hub's read API, and a ReadAPI that connects to it.
func newReplica(t *testing.T, handler http.HandlerFunc) (*httptest.Server, *ReadAPI) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	reads := NewReadAPI(func(context.Context) (*connect.ReadAPI, error) { return openServer(server) })
	t.Cleanup(reads.Close)
	return server, reads
}

func openServer(server *httptest.Server) (*connect.ReadAPI, error) {
	c, err := readapi.NewClient(server.URL, &http.Client{Transport: server.Client().Transport})
	return &connect.ReadAPI{Client: c, URL: server.URL, Close: func() {}}, err
}

func answerJSON(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, `{"read":true}`)
}

// testBrowser sends what the app sends.
type testBrowser struct {
	t       *testing.T
	origin  string
	cookies []*http.Cookie
}

func (b *testBrowser) send(method, path, body string, changes map[string]string) (int, string) {
	b.t.Helper()
	request, err := http.NewRequestWithContext(b.t.Context(), method, b.origin+path, strings.NewReader(body))
	require.NoError(b.t, err)
	if method != http.MethodGet {
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Ot-Fleet", "1")
		request.Header.Set("Origin", b.origin)
	}
	for _, c := range b.cookies {
		request.AddCookie(c)
	}
	for name, value := range changes {
		request.Header.Set(name, value)
		if name == "Host" {
			request.Host = value
		}
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(b.t, err)
	defer func() { _ = response.Body.Close() }()
	assert.Contains(b.t, response.Header.Get("Content-Security-Policy"), "script-src 'self'", "%s %s", method, path)
	text, err := io.ReadAll(response.Body)
	require.NoError(b.t, err)
	b.cookies = append(b.cookies, response.Cookies()...)
	return response.StatusCode, string(text)
}

func (b *testBrowser) exchangeKey(key string) int {
	status, _ := b.send("POST", "/auth/key", fmt.Sprintf(`{"key":%q}`, key), nil)
	return status
}

// startDashboard returns a dashboard that serves, and a function that returns another browser.
func startDashboard(t *testing.T, sameUser func(net.Conn) bool) (*Dashboard, func() *testBrowser) {
	t.Helper()
	_, reads := newReplica(t, answerJSON)
	api := httptest.NewServer(http.HandlerFunc(answerJSON))
	t.Cleanup(api.Close)
	caller, err := ui.NewCaller(&rest.Config{Host: api.URL, BearerToken: "annas"}, "anna")
	require.NoError(t, err)
	d, err := Listen(Options{Caller: caller, Reads: reads, SameUser: sameUser, Policy: types.NamespacedName{Namespace: "a", Name: "b"}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.ServeUntil(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.ErrorIs(t, <-ended, context.Canceled)
	})
	return d, func() *testBrowser { return &testBrowser{t: t, origin: d.origin} }
}

func keyOf(t *testing.T, address string) string {
	t.Helper()
	_, key, found := strings.Cut(address, "/#key=")
	require.True(t, found, address)
	require.GreaterOrEqual(t, len(key), 40)
	return key
}

const image = "/k8s/apis/pelotech.ot/v1alpha1/fleetdiskimages/win-11"

func TestAllButTheAppNeedsTheCookie(t *testing.T) {
	d, newBrowser := startDashboard(t, nil)
	key := keyOf(t, d.NewURL())
	anna, mallory := newBrowser(), newBrowser()
	statusOf := func(b *testBrowser, method, path string) int {
		body := ""
		if method != http.MethodGet {
			body = "{}"
		}
		status, _ := b.send(method, path, body, map[string]string{"Content-Type": "application/merge-patch+json"})
		return status
	}
	for _, b := range []*testBrowser{anna, mallory} {
		assert.Equal(t, 200, statusOf(b, "GET", "/"))
		for _, path := range []string{"/fleet/v1/summary", "/fleet/v1/events", "/auth/me", image} {
			assert.Equal(t, 401, statusOf(b, "GET", path), path)
		}
		assert.Equal(t, 401, statusOf(b, "PATCH", image))
	}
	require.Equal(t, 204, anna.exchangeKey(key))
	require.Len(t, anna.cookies, 1)
	c := anna.cookies[0]
	assert.True(t, c.HttpOnly)
	assert.Equal(t, http.SameSiteStrictMode, c.SameSite)
	assert.Equal(t, "/", c.Path)
	assert.Empty(t, c.Domain)
	assert.Zero(t, c.MaxAge)
	assert.Equal(t, 200, statusOf(anna, "GET", "/fleet/v1/summary"))
	assert.Equal(t, 200, statusOf(anna, "PATCH", image))
	assert.Equal(t, 401, statusOf(mallory, "GET", "/fleet/v1/summary"))

	// Once, and for one browser; a page that is loaded again stays signed in.
	assert.Equal(t, 204, anna.exchangeKey(key))
	assert.Len(t, anna.cookies, 1, "no other cookie")
	assert.Equal(t, 401, mallory.exchangeKey(key))
	for _, guess := range []string{"", key[1:], key + "x", strings.ToLower(key)} {
		assert.Equal(t, 401, mallory.exchangeKey(guess), guess)
	}
	mallory.cookies = []*http.Cookie{{Name: c.Name, Value: c.Value[1:]}, {Name: "ot-fleet", Value: c.Value}, {Name: c.Name, Value: ""}}
	assert.Equal(t, 401, statusOf(mallory, "GET", "/fleet/v1/summary"))
	assert.Equal(t, 401, statusOf(mallory, "PATCH", image))

	// The cookie alone is not enough for pages of other sites.
	forged := map[string]string{"Content-Type": "application/merge-patch+json", "Origin": "http://127.0.0.1:1"}
	status, _ := anna.send("PATCH", image, "{}", forged)
	assert.Equal(t, 403, status)
	status, _ = anna.send("GET", "/fleet/v1/summary", "", map[string]string{"Host": "evil.example"})
	assert.Equal(t, 421, status)
}

func TestAnotherAddressVoidsTheOneBefore(t *testing.T) {
	d, newBrowser := startDashboard(t, nil)
	first, second := keyOf(t, d.NewURL()), keyOf(t, d.NewURL())
	assert.NotEqual(t, first, second)
	assert.Equal(t, 401, newBrowser().exchangeKey(first))
	assert.Equal(t, 204, newBrowser().exchangeKey(second))

	another, newOther := startDashboard(t, nil)
	assert.NotEqual(t, d.cookie, another.cookie, "cookies know no ports: each process has a name of its own")
	assert.Equal(t, 401, newOther().exchangeKey(keyOf(t, d.NewURL())))
}

func TestKeysAreExchangedByTheAppAlone(t *testing.T) {
	d, newBrowser := startDashboard(t, nil)
	key := keyOf(t, d.NewURL())
	body := fmt.Sprintf(`{"key":%q}`, key)
	for name, tt := range map[string]struct {
		method, path, body string
		headers            map[string]string
		want               int
	}{
		"a form":         {"POST", "/auth/key", "key=" + key, map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, 415},
		"another site":   {"POST", "/auth/key", body, map[string]string{"Origin": "https://evil.example"}, 403},
		"no header":      {"POST", "/auth/key", body, map[string]string{"Ot-Fleet": ""}, 403},
		"rebound":        {"POST", "/auth/key", body, map[string]string{"Host": "evil.example"}, 421},
		"by an address":  {"GET", "/auth/key?key=" + key, "", nil, 405},
		"no JSON":        {"POST", "/auth/key", "key", nil, 400},
		"a large one":    {"POST", "/auth/key", fmt.Sprintf(`{"key":%q}`, strings.Repeat("x", maxKeyBytes)), nil, 400},
		"a token":        {"POST", "/auth/login", `{"token":"x"}`, nil, 404},
		"another method": {"DELETE", "/auth/key", body, nil, 405},
	} {
		status, text := newBrowser().send(tt.method, tt.path, tt.body, tt.headers)
		assert.Equal(t, tt.want, status, "%s: %s", name, text)
	}
	assert.Equal(t, 204, newBrowser().exchangeKey(key), "none of them has used it")
}

func TestSessionsAreBounded(t *testing.T) {
	s := NewSessions()
	request := func(cookie string) *http.Request {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.AddCookie(&http.Cookie{Name: s.cookie, Value: cookie})
		return r
	}
	first, ok := s.exchange(s.NewKey())
	require.True(t, ok)
	for range maxSessions {
		cookie, ok := s.exchange(s.NewKey())
		require.True(t, ok)
		assert.True(t, s.isSignedIn(request(cookie)))
	}
	assert.Len(t, s.signedIn, maxSessions)
	assert.False(t, s.isSignedIn(request(first)), "the oldest is signed out")
}

// A connection of another user of the machine gets nothing, not even with a key.
func TestOtherUsersAreRefused(t *testing.T) {
	d, newBrowser := startDashboard(t, func(net.Conn) bool { return false })
	b := newBrowser()
	assert.Equal(t, 403, b.exchangeKey(keyOf(t, d.NewURL())))
	status, text := b.send("GET", "/", "", nil)
	assert.Equal(t, 403, status)
	assert.Contains(t, text, "another user of this machine")

	d, newBrowser = startDashboard(t, FindSameUser())
	assert.Equal(t, 204, newBrowser().exchangeKey(keyOf(t, d.NewURL())), "a process of the same user")
}

func TestPortsThatAreTaken(t *testing.T) {
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	_, err = Listen(Options{Port: taken.Addr().(*net.TCPAddr).Port, Reads: NewReadAPI(nil)})
	require.ErrorContains(t, err, "--port ")
}

func TestBrowserCommand(t *testing.T) {
	for system, want := range map[string]string{"linux": "xdg-open", "darwin": "open", "windows": "rundll32", "freebsd": "xdg-open"} {
		command := browserCommand(system, "http://127.0.0.1:1/#key=k")
		assert.Equal(t, want, command[0])
		assert.Equal(t, "http://127.0.0.1:1/#key=k", command[len(command)-1])
	}
	page := string(redirectPage(`http://127.0.0.1:1/#key=a"b`))
	assert.Contains(t, page, `url=http://127.0.0.1:1/#key=a&#34;b"`)
}
