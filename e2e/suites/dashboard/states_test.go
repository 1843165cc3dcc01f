//go:build linux

package dashboard_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/e2e/harness/browser"
	"github.com/pelotech/ot-fleet/e2e/harness/playedfleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// refuseReads answers the read API with an error.
func refuseReads(status int, retryAfter, message string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, request *http.Request) bool {
		if !strings.HasPrefix(request.URL.Path, readapi.Root) {
			return false
		}
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(readapi.ErrorAnswer{Error: message}) // the page is gone
		return true
	}
}

// While no replica is elected, the page says so, counts down, and goes on by itself.
func TestUnavailableHub(t *testing.T) {
	p := openOwn(t, playedfleet.Healthy, "")
	opened := chromium.OpenPage(t, browser.Options{Origin: p.origin})
	opened.Announce("503 /fleet/v1/")
	p.faults.set(refuseReads(http.StatusServiceUnavailable, "3", "no replica of the hub is elected: try again"))
	opened.Visit(t, "/clusters")
	opened.AwaitText(t, "no replica of the hub is elected")
	opened.AwaitTrue(t, `/next try is in \d+ s/i.test(document.body.innerText)`)
	p.faults.set(nil)
	opened.AwaitNoText(t, "no replica of the hub is elected")
	opened.AwaitText(t, "bergen")
}

// When the stream ends, the page says that it no longer hears of changes, and what it shows stays.
// When nothing answers, that is dimmed, with its age. Then both go on without the page being loaded
// again.
func TestLostStream(t *testing.T) {
	testenv.RunInTurn(t, 1)
	p := openOwn(t, playedfleet.Healthy, "")
	opened := chromium.OpenPage(t, browser.Options{Origin: p.origin})
	opened.Visit(t, "/clusters")
	opened.AwaitText(t, "bergen")
	browser.Evaluate[bool](t, opened, "(window.sameDocument = true)")
	opened.Announce("502 /fleet/v1/", "/fleet/v1/events")
	p.faults.set(refuseReads(http.StatusBadGateway, "", "the hub does not answer"))
	p.faults.cutStreams()
	opened.AwaitText(t, "stream of changes is lost")
	opened.AwaitText(t, "bergen")
	opened.AwaitTrue(t, "document.querySelector('.stale') !== null")
	opened.AwaitTrue(t, `/shown is\s+\S+\s+old/.test(document.body.innerText)`)
	assert.Contains(t, opened.Text(t), "bergen", "what was known was removed")
	p.faults.set(nil)
	opened.AwaitNoText(t, "stream of changes is lost")
	opened.AwaitTrue(t, "document.querySelector('.stale') === null")
	assert.True(t, browser.Evaluate[bool](t, opened, "window.sameDocument === true"), "the page was loaded again")
}

// What changes is seen on an open page.
func TestChangesAreSeen(t *testing.T) {
	p := openOwn(t, playedfleet.Empty, "")
	opened := chromium.OpenPage(t, browser.Options{Origin: p.origin})
	opened.Visit(t, "/")
	opened.AwaitText(t, "kubectl ot")
	p.AddMember("bergen")
	opened.AwaitText(t, "bergen")
	p.ReportMember("bergen")
	p.advance(time.Second)
	opened.AwaitTrue(t, "document.querySelector('main .sign-good, main .check-done, main [data-done]') !== null")
}

// What changes between an answer and the opening of the stream is seen, too: the stream says nothing
// of it.
func TestChangeBeforeTheStreamIsSeen(t *testing.T) {
	p := openOwn(t, playedfleet.Healthy, "")
	opening := make(chan struct{})
	p.faults.set(func(_ http.ResponseWriter, request *http.Request) bool {
		if request.URL.Path == readapi.Root+"events" {
			select {
			case <-opening:
			case <-request.Context().Done():
			}
		}
		return false
	})
	opened := chromium.OpenPage(t, p.options())
	opened.Visit(t, "/policy")
	opened.AwaitTrue(t, "document.getElementById('key-retryLimit')?.value === ''")
	assert.Equal(t, http.StatusOK, patchPolicy(t, opened, p.PolicyKey, `{ data: { retryLimit: '7' } }`))
	close(opening)
	opened.AwaitTrue(t, "document.getElementById('key-retryLimit').value === '7'")
}
