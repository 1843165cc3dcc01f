//go:build linux

package dashboard_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/browser"
	"github.com/pelotech/ot-fleet/e2e/harness/playedfleet"
)

// enabled is true once the button of a dialog that makes the change can be pressed.
const enabled = `document.querySelector('dialog[open] .dialog-actions [aria-disabled="false"]:is(.button-primary, .button-danger)') !== null`

// Images are ticked by mouse and keyboard, approved, and taken back. The ImagePrune has the digest
// of the report that was reviewed, exactly the names that were ticked, and the person.
func TestPruneAndUndo(t *testing.T) {
	f := openOwn(t, playedfleet.Burning, "")
	report := &v1alpha1.PruneReport{}
	require.NoError(t, f.Live.Get(t.Context(), client.ObjectKey{Name: "spring"}, report))
	p := chromium.OpenPage(t, f.options())
	p.Visit(t, "/cleanup/spring?window=1h")
	p.AwaitText(t, "unchanged")
	p.Click(t, "checkbox", "vmdi-farm/ubuntu-2.0.1")
	p.AwaitText(t, "1 name")
	// From there the arrows go to the next tile, by size.
	p.Press(t, kb.ArrowRight, " ")
	p.AwaitText(t, "2 names")
	const ticked = "new URLSearchParams(location.hash.slice(1)).get('tick')"
	p.AwaitTrue(t, ticked+".split(',').length === 2") // the address follows as keys rest
	names := strings.Split(browser.Evaluate[string](t, p, ticked), ",")

	p.Click(t, "button", "Approve as anna@example.com…")
	p.AwaitTrue(t, enabled)
	dialog := browser.Evaluate[string](t, p, "document.querySelector('dialog[open]').innerText")
	for _, said := range []string{"they can go, and are not ticked", "4 clusters that are unknown", "each serves on for 1 hour", report.Status.Digest, "kubectl ot prune approve spring --digest"} {
		assert.Contains(t, dialog, said)
	}
	p.Click(t, "button", "Approve as anna@example.com")
	p.AwaitText(t, "ImagePrune spring is created")
	created := &v1alpha1.ImagePrune{}
	require.NoError(t, f.Live.Get(t.Context(), client.ObjectKey{Name: "spring"}, created))
	assert.Equal(t, v1alpha1.PruneReportRef{Name: "spring", Digest: report.Status.Digest}, created.Spec.ReportRef)
	assert.ElementsMatch(t, names, created.Spec.Images)
	assert.Empty(t, created.Spec.Clusters)
	assert.False(t, created.Spec.IncludeOthers)
	assert.Equal(t, time.Hour, created.Spec.UndoWindowOrDefault())
	assert.Equal(t, "anna@example.com", created.Spec.ApprovedBy)

	p.Click(t, "button", "Close")
	p.AwaitTrue(t, `/go in\s+\d/.test(document.querySelector('.prune-countdown')?.innerText ?? '')`)
	p.Click(t, "button", "Undo…")
	p.AwaitTrue(t, enabled)
	p.Click(t, "button", "Take it back")
	p.AwaitText(t, "is being taken back")
	require.NoError(t, f.Live.Get(t.Context(), client.ObjectKey{Name: "spring"}, created))
	assert.True(t, created.Spec.Undo)
	p.Click(t, "button", "Close")
	p.AwaitNone(t, "button", "Undo…")
}

// A second report is made on the same page: its name is of the time at which its dialog opens.
func TestTwoReportsAreMade(t *testing.T) {
	f := openOwn(t, playedfleet.Burning, "")
	p := chromium.OpenPage(t, browser.Options{Origin: f.origin}) // whose clock does not stand
	p.Visit(t, "/cleanup")
	const offered = `document.querySelector('dialog[open] input[aria-label="Name of the report"]')?.value`
	names := map[string]bool{}
	for range 2 {
		p.Click(t, "button", "Make a report…")
		p.AwaitTrue(t, offered+" !== undefined")
		name := browser.Evaluate[string](t, p, offered)
		names[name] = true
		p.Click(t, "button", "Make the report")
		p.AwaitText(t, "PruneReport "+name+" is being made.")
		require.NoError(t, f.Live.Get(t.Context(), client.ObjectKey{Name: name}, &v1alpha1.PruneReport{}))
		p.Click(t, "button", "Close")
		p.AwaitTrue(t, fmt.Sprintf(`'report-' + new Date().toISOString().slice(0, 19).replace(/[-:]/g, '').replace('T', '-') > %q`, name))
	}
	assert.Len(t, names, 2)
}

// Rows of a report and images of a prune are on one page: each list has its own place in the
// address.
func TestListsOfAReportArePagedAlone(t *testing.T) {
	f := openStanding(t, playedfleet.Burning)
	report := &v1alpha1.PruneReport{}
	require.NoError(t, f.Live.Get(t.Context(), client.ObjectKey{Name: "autumn"}, report))
	p := chromium.OpenPage(t, f.options())
	p.Visit(t, "/cleanup/autumn?verdict=kept&targets=autumn&after="+report.Status.Digest+"-0-1&targetsAfter=a")
	p.AwaitElement(t, "table", "Rows of the report")
	p.AwaitElement(t, "table", "Images of prune autumn")
	asked := map[string]string{}
	for _, request := range p.Requests() {
		u, err := url.Parse(request)
		require.NoError(t, err)
		asked[strings.TrimPrefix(u.Path, readapi.Root)] = u.Query().Get("after")
	}
	assert.Equal(t, report.Status.Digest+"-0-1", asked["prunereports/rows"])
	assert.Equal(t, "a", asked["imageprunes/targets"])
}

// A page of what stays is a place among all rows of the report: the unknown clusters begin at their
// first.
func TestAllUnknownClustersOfAReport(t *testing.T) {
	f := openOwn(t, playedfleet.Burning, "")
	report := &v1alpha1.PruneReport{}
	require.NoError(t, f.Live.Get(t.Context(), client.ObjectKey{Name: "autumn"}, report))
	played := f.Handler(playedfleet.HandlerOptions{Origin: f.origin})
	f.faults.set(func(w http.ResponseWriter, request *http.Request) bool {
		if request.URL.Path != readapi.Root+"prunereports" {
			return false
		}
		recorder, list := httptest.NewRecorder(), readapi.PruneReportList{}
		request.Header.Del("Accept-Encoding")
		request.Header.Del("If-None-Match")
		played.ServeHTTP(recorder, request)
		if assert.NoError(t, json.NewDecoder(recorder.Body).Decode(&list)) {
			list.Reports[0].Clusters.Unknown = 9 // more than the page names
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list) // the page is gone
		return true
	})
	p := chromium.OpenPage(t, f.options())
	p.Visit(t, "/cleanup/autumn?verdict=kept&after="+report.Status.Digest+"-0-1")
	p.AwaitElement(t, "table", "Rows of the report")
	p.Click(t, "link", "all")
	p.AwaitTrue(t, "location.search === '?verdict=unknown'")
	p.AwaitText(t, "What is known")
	var asked []url.Values
	for _, request := range p.Requests() {
		u, err := url.Parse(request)
		require.NoError(t, err)
		if u.Path == readapi.Root+"prunereports/rows" && u.Query().Get("verdict") == "unknown" {
			asked = append(asked, u.Query())
		}
	}
	require.NotEmpty(t, asked)
	for _, query := range asked {
		assert.Empty(t, query.Get("after"))
	}
}

// What a change of the policy would change is shown while it is typed. It is written only onto the
// version that it was begun on.
func TestPolicyIsChanged(t *testing.T) {
	f := openOwn(t, playedfleet.Burning, "")
	key := f.PolicyKey
	p := chromium.OpenPage(t, f.options())
	p.Visit(t, "/policy")
	p.FillField(t, "textbox", "concurrency", "many")
	p.AwaitText(t, `concurrency: "many" is not a whole number from 0 to 256`)
	p.FillField(t, "textbox", "concurrency", "5")
	p.AwaitTrue(t, `/\d+\s+of \d+/.test(document.querySelector('.policy-side .figures')?.innerText ?? '')`)

	// Another person is faster.
	assert.Equal(t, http.StatusOK, patchPolicy(t, p, key, `{ data: { retryLimit: '7' } }`))
	p.AwaitText(t, "Somebody changed the ConfigMap since you began")
	p.Click(t, "button", "Write it…")
	p.AwaitTrue(t, `document.querySelector('dialog[open] .dialog-actions [aria-disabled="true"].button-primary') !== null`)
	p.Press(t, kb.Escape)
	p.Click(t, "link", "Go on with the new version")
	p.AwaitNoText(t, "Somebody changed the ConfigMap since you began")
	p.Click(t, "button", "Write it…")
	p.Click(t, "button", "Write it")
	p.AwaitText(t, "ConfigMap "+key.String()+" is written.")
	written := &corev1.ConfigMap{}
	require.NoError(t, f.Live.Get(t.Context(), key, written))
	assert.Equal(t, "5", written.Data["concurrency"])
	assert.Equal(t, "7", written.Data["retryLimit"], "what the other person wrote stays")

	// A change that is based on an older version is refused by the API server, too.
	p.Announce("409 /k8s/")
	assert.Equal(t, http.StatusConflict, patchPolicy(t, p, key, `{ metadata: { resourceVersion: '1' }, data: { concurrency: '9' } }`))
}

// patchPolicy changes the policy as another person does: the page hears of it by the stream alone.
func patchPolicy(t *testing.T, p *browser.Page, key client.ObjectKey, patch string) (status int) {
	t.Helper()
	return browser.Evaluate[int](t, p, `fetch('/k8s/api/v1/namespaces/`+key.Namespace+`/configmaps/`+key.Name+`', {
		method: 'PATCH', headers: { 'Ot-Fleet': '1', 'Content-Type': 'application/merge-patch+json' }, body: JSON.stringify(`+patch+`),
	}).then((r) => r.status)`)
}

// peekBody returns the body of a request, which is still to be read.
func peekBody(request *http.Request) string {
	body, _ := io.ReadAll(request.Body) // a body that breaks is the dashboard's to refuse
	request.Body = io.NopCloser(bytes.NewReader(body))
	return string(body)
}

// A change cannot be written before the page shows what it would change: what another change would
// is never taken for that, not even for one drawing of the page.
func TestWriteAwaitsItsReach(t *testing.T) {
	f := openOwn(t, playedfleet.Burning, "")
	asked, answering := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f.faults.set(func(_ http.ResponseWriter, request *http.Request) bool {
		if request.URL.Path == readapi.Root+"blastradius" && strings.Contains(peekBody(request), `\"6\"`) {
			once.Do(func() { close(asked) })
			select {
			case <-answering:
			case <-request.Context().Done():
			}
		}
		return false
	})
	p := chromium.OpenPage(t, f.options())
	p.Visit(t, `/policy?do=policy&draft={"concurrency":"5"}`)
	p.AwaitTrue(t, enabled)
	// The person goes back to another draft, with the dialog open.
	browser.Evaluate[bool](t, p, `(() => {
		globalThis.enabledAt = []
		const note = () => { if (`+enabled+`) globalThis.enabledAt.push(location.search) }
		new MutationObserver(note).observe(document.querySelector('dialog[open]'), { subtree: true, childList: true, attributes: true, characterData: true })
		history.pushState(null, '', '/policy?do=policy&draft=' + encodeURIComponent('{"concurrency":"6"}'))
		dispatchEvent(new PopStateEvent('popstate'))
		return true
	})()`)
	p.AwaitText(t, "What this would change is being computed.")
	select {
	case <-asked:
	case <-t.Context().Done():
	}
	p.AwaitText(t, "What this would change is being computed.")
	assert.Empty(t, browser.Evaluate[[]string](t, p, "globalThis.enabledAt"), "it could be written")
	close(answering)
	p.AwaitTrue(t, enabled)
}
