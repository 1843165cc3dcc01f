package browser

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
)

// watcher notes what goes wrong on a page.
type watcher struct {
	origin string

	mu        sync.Mutex
	wrong     []string
	announced []string
	urls      map[network.RequestID]string
	paths     []string
	// unanswered are paths that the last document has asked for and whose answer is not complete.
	// What becomes of requests of a page that is left is not told. A stream of Events has no end.
	unanswered map[network.RequestID]string
	document   cdp.LoaderID
	// received of requests that may go on.
	received map[network.RequestID]int64
	bytes    int64
}

func newWatcher(origin string) *watcher {
	return &watcher{origin: originOf(origin), urls: map[network.RequestID]string{}, received: map[network.RequestID]int64{}, unanswered: map[network.RequestID]string{}}
}

func (w *watcher) allowFailures(texts []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.announced = append(w.announced, texts...)
}

func (w *watcher) transferred() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bytes
}

func (w *watcher) requested() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.paths...)
}

func (w *watcher) unansweredPaths() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Values(w.unanswered))
}

// failures returns what went wrong and was not announced.
func (w *watcher) failures() (unexpected []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, text := range w.wrong {
		if !w.isAnnounced(text) {
			unexpected = append(unexpected, text)
		}
	}
	return unexpected
}

func (w *watcher) isAnnounced(text string) bool {
	for _, announced := range w.announced {
		if strings.Contains(text, announced) {
			return true
		}
	}
	return false
}

// addFailure requires w.mu.
func (w *watcher) addFailure(format string, args ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// recordEvent is called for each event of the page, in order.
func (w *watcher) recordEvent(event any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		w.addFailure("uncaught exception: %s", text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "assert" {
			w.addFailure("console: %s", consoleText(e.Args))
		}
	case *log.EventEntryAdded:
		w.noteLogEntry(e.Entry)
	case *audits.EventIssueAdded:
		if details := e.Issue.Details; details != nil && details.ContentSecurityPolicyIssueDetails != nil {
			csp := details.ContentSecurityPolicyIssueDetails
			w.addFailure("Content-Security-Policy: %s is violated, %s %s", csp.ViolatedDirective, csp.ContentSecurityPolicyViolationType, csp.BlockedURL)
		}
	case *network.EventRequestWillBeSent:
		w.noteRequest(e)
	case *network.EventResponseReceived:
		if e.Response.Status >= 400 {
			w.addFailure("request: %d %s", e.Response.Status, pathOf(e.Response.URL))
		}
	case *network.EventDataReceived:
		w.received[e.RequestID] += e.EncodedDataLength
		w.bytes += e.EncodedDataLength
	case *network.EventLoadingFinished:
		w.bytes += int64(e.EncodedDataLength) - w.received[e.RequestID]
		delete(w.unanswered, e.RequestID)
	case *network.EventLoadingFailed:
		delete(w.unanswered, e.RequestID)
		// A page that is left cancels what it has asked for.
		if !e.Canceled && e.ErrorText != "net::ERR_ABORTED" {
			w.addFailure("request: %s %s %s", e.ErrorText, e.BlockedReason, pathOf(w.urls[e.RequestID]))
		}
	}
}

func (w *watcher) noteLogEntry(e *log.Entry) {
	// Failed requests are noted as such.
	if e.Level != "error" || e.Source == "network" {
		return
	}
	w.addFailure("%s: %s %s", e.Source, e.Text, e.URL)
}

func (w *watcher) noteRequest(e *network.EventRequestWillBeSent) {
	address := e.Request.URL
	w.urls[e.RequestID] = address
	if strings.HasPrefix(address, "data:") || strings.HasPrefix(address, "blob:") {
		return
	}
	if origin := originOf(address); origin != w.origin {
		w.addFailure("request to another origin: %s", address)
		return
	}
	w.paths = append(w.paths, pathOf(address))
	if e.Type == network.ResourceTypeDocument {
		w.document = e.LoaderID
		clear(w.unanswered)
	}
	if e.LoaderID == w.document && e.Type != network.ResourceTypeEventSource {
		w.unanswered[e.RequestID] = pathOf(address)
	}
}

func pathOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	return u.RequestURI()
}

func consoleText(args []*runtime.RemoteObject) string {
	texts := make([]string, len(args))
	for i, arg := range args {
		texts[i] = arg.Description
		if texts[i] == "" && json.Unmarshal(arg.Value, &texts[i]) != nil {
			texts[i] = string(arg.Value)
		}
	}
	return strings.Join(texts, " ")
}
