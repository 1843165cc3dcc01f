//go:build linux

package dashboard_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/browser"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/oidc"
)

// A person pastes a token, and finds the page whose address they opened. A token that the API server
// does not take is refused in words, and no script can read what is kept of one that it takes.
func TestSignInByToken(t *testing.T) {
	f := openHub(t)
	p := chromium.OpenPage(t, browser.Options{Origin: f.front.URL})
	p.Announce("401 /auth/me", "401 /auth/login")
	const path = "/rollouts?phase=attention"
	p.Visit(t, path)
	p.FillField(t, "textbox", "Bearer token", "no-token")
	p.Click(t, "button", "Sign in")
	p.AwaitElement(t, "alert", "")
	assert.Equal(t, path, p.Path(t))
	f.signIn(t, p, anna)
	assert.Equal(t, path, p.Path(t), "the address was lost")
	p.AwaitTrue(t, "document.querySelector('main h1')?.innerText.includes('Rollouts')")
	assert.NotContains(t, browser.Evaluate[string](t, p, "document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)"), ".", "a script can read the credential")

	p.Click(t, "button", "Sign out")
	p.AwaitElement(t, "button", "Sign in")
	p.Visit(t, path)
	p.AwaitElement(t, "button", "Sign in")
}

// A proxy in front signs people in, and passes their ID token on: nobody pastes anything.
func TestSignInByProxy(t *testing.T) {
	f := openHub(t)
	token := f.token(t, vera)
	elected, _ := f.electedAndOther(t)
	proxy, err := oidc.StartProxy(f.replicas[elected].UIURL, func(*http.Request) string { return token })
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	p := chromium.OpenPage(t, browser.Options{Origin: proxy.URL})
	p.Visit(t, "/profile")
	p.AwaitElement(t, "link", vera)
	p.AwaitNone(t, "button", "Sign out")
}

// A session that ends while the page is open asks for a token, keeps the address, and goes on.
func TestEndedSessionKeepsTheAddress(t *testing.T) {
	f := openHub(t)
	const path = "/rollouts?search=ended"
	p := f.openSignedIn(t, anna, path)
	p.Announce("401 ", "502 /fleet/v1/events", "ERR_INCOMPLETE_CHUNKED_ENCODING  /fleet/v1/events") // 502: of one that was cut before it was answered
	f.faults.set(func(w http.ResponseWriter, request *http.Request) bool {
		if request.URL.Path == "/auth/login" {
			f.faults.set(nil)
			return false
		}
		if len(request.URL.Path) < 8 || request.URL.Path[:7] != "/fleet/" && request.URL.Path[:6] != "/auth/" {
			return false
		}
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	t.Cleanup(func() { f.faults.set(nil) })
	f.faults.cutStreams()
	f.createWaiting(t, "ended-session")
	p.AwaitElement(t, "button", "Sign in")
	assert.Equal(t, path, p.Path(t))
	f.signIn(t, p, anna)
	assert.Equal(t, path, p.Path(t))
}

// Who may not read is told which right is missing, and which role has it: when they sign in, and
// where a proxy has signed them in.
func TestRightThatIsMissingIsNamed(t *testing.T) {
	f := openHub(t)
	p := chromium.OpenPage(t, browser.Options{Origin: f.front.URL})
	p.Announce("401 /auth/me", "403 /auth/login")
	p.Visit(t, "/")
	p.FillField(t, "textbox", "Bearer token", f.token(t, sam))
	p.Click(t, "button", "Sign in")
	p.AwaitText(t, "ot-hub-reader")
	assert.Regexp(t, `\bget\b`, p.Text(t))

	token := f.token(t, sam)
	elected, _ := f.electedAndOther(t)
	proxy, err := oidc.StartProxy(f.replicas[elected].UIURL, func(*http.Request) string { return token })
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	p = chromium.OpenPage(t, browser.Options{Origin: proxy.URL})
	p.Announce("403 /")
	p.Visit(t, "/")
	p.AwaitText(t, "ot-hub-reader")
	assert.Regexp(t, `\bget\b`, p.Text(t))
}

// A viewer has no button that changes anything, and what a page of the dashboard's own origin sends
// all the same is refused by the API server.
func TestViewerCannotChangeAnything(t *testing.T) {
	f := openHub(t)
	img := f.createWaiting(t, "viewer")
	p := f.openSignedIn(t, vera, "/rollouts/viewer")
	p.AwaitText(t, "production")
	for _, of := range []string{"Approve", "Pause", "Resume", "Abort", "Retry"} {
		for _, e := range p.FindAll(t, "button", of) {
			assert.Contains(t, e.Name, "Copy", "a viewer sees a button %s", e.Name)
		}
	}
	p.Announce("403 /k8s/")
	status := browser.Evaluate[int](t, p, `fetch('/k8s/apis/pelotech.ot/v1alpha1/fleetdiskimages/viewer', {
		method: 'PATCH', headers: { 'Ot-Fleet': '1', 'Content-Type': 'application/json-patch+json' },
		body: JSON.stringify([{ op: 'add', path: '/spec/approvals/-', value: { wave: 'production', version: '1.0.0', by: '`+vera+`' } }]),
	}).then((r) => r.status)`)
	assert.Equal(t, http.StatusForbidden, status)
	got := &v1alpha1.FleetDiskImage{}
	require.NoError(t, f.Get(t.Context(), keyOf(img), got))
	assert.Empty(t, got.Spec.Approvals)
}

// Requests of other sites, or without the header of the dashboard, never reach the API server with
// a person's session.
func TestForgedRequestsAreRefused(t *testing.T) {
	f := openHub(t)
	f.createWaiting(t, "forged")
	p := f.openSignedIn(t, anna, "/rollouts/forged")
	p.Announce("403 /k8s/")
	status := browser.Evaluate[int](t, p, `fetch('/k8s/apis/pelotech.ot/v1alpha1/fleetdiskimages/forged', {
		method: 'PATCH', headers: { 'Content-Type': 'application/merge-patch+json' }, body: '{"spec":{"rollout":{"paused":true}}}',
	}).then((r) => r.status)`)
	assert.Equal(t, http.StatusForbidden, status)

	// A page of another site, in the same browser.
	site := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<!doctype html><title>x</title><h1>another site</h1>"))
	})
	other := startSite(t, site)
	p.Announce("another origin", "NotSameOrigin", "ERR_FAILED", "/favicon.ico", "403 ")
	require.NoError(t, p.NavigateTo(other))
	answer := browser.Evaluate[string](t, p, `fetch('`+f.front.URL+`/k8s/apis/pelotech.ot/v1alpha1/fleetdiskimages/forged', {
		method: 'POST', mode: 'no-cors', credentials: 'include', headers: { 'Content-Type': 'text/plain' }, body: '{"spec":{"rollout":{"paused":true}}}',
	}).then((r) => r.type, (e) => 'failed')`)
	assert.Contains(t, []string{"opaque", "failed"}, answer)
	got := &v1alpha1.FleetDiskImage{}
	require.NoError(t, f.Get(t.Context(), keyOf(fleet.NewFleetImage("forged")), got))
	assert.False(t, got.Spec.Rollout.Paused)
}
