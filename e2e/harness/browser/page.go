package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

const (
	// patience bounds the wait for a condition. It is long, because a busy machine is no failure.
	patience = 2 * time.Minute
	// pollInterval is how often a condition is looked at.
	pollInterval = 40 * time.Millisecond
)

// Options of a page.
type Options struct {
	// Origin of the dashboard, as http://127.0.0.1:8080. Requests to others fail the test.
	Origin string
	// Width and Height in CSS pixels; 1280 × 900 for 0. Zoom is the size of a CSS pixel; 1 for 0.
	Width, Height int64
	Zoom          float64
	// Dark, and ReducedMotion, are what the person prefers.
	Dark, ReducedMotion bool
	// Now is what the page takes for the time; the real one for zero.
	Now time.Time
	// Headers are added to each request, as a proxy in front does.
	Headers map[string]string
}

// Page is a page of the browser.
type Page struct {
	Origin string
	ctx    context.Context
	watch  *watcher
}

// OpenPage opens an empty page, and closes it when the test ends. The test fails if anything went
// wrong on it by then.
func (b *Browser) OpenPage(t *testing.T, o Options) *Page {
	t.Helper()
	p, closePage, err := b.openPage(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		closePage()
		for _, failure := range p.watch.failures() {
			t.Errorf("%s: %s", o.Origin, failure)
		}
	})
	return p
}

// OpenUnwatched opens an empty page that no test stands behind.
func (b *Browser) OpenUnwatched(o Options) (p *Page, closePage func(), err error) {
	return b.openPage(o)
}

func (b *Browser) openPage(o Options) (*Page, func(), error) {
	p := &Page{Origin: strings.TrimSuffix(o.Origin, "/"), watch: newWatcher(o.Origin)}
	ctx, cancel := chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext(), chromedp.WithListener(p.watch.recordEvent))
	p.ctx = ctx
	if err := p.applyOptions(o); err != nil {
		cancel()
		return nil, nil, fmt.Errorf("opening a page: %w", err)
	}
	return p, cancel, nil
}

func (p *Page) applyOptions(o Options) error {
	if err := chromedp.Do(p.ctx); err != nil {
		return err
	}
	zoom := o.Zoom
	if zoom == 0 {
		zoom = 1
	}
	width, height := o.Width, o.Height
	if width == 0 {
		width, height = 1280, 900
	}
	if height == 0 {
		height = 900
	}
	theme, motion := "light", "no-preference"
	if o.Dark {
		theme = "dark"
	}
	if o.ReducedMotion {
		motion = "reduce"
	}
	headers := network.Headers{}
	for name, value := range o.Headers {
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		headers[name] = text
	}
	_, err := chromedp.Call(p.ctx, network.Enable, network.EnableParams{})
	callCommand(p.ctx, &err, log.Enable)
	callCommand(p.ctx, &err, audits.Enable)
	callCommand(p.ctx, &err, performance.Enable, performance.EnableParams{TimeDomain: performance.EnableTimeDomainThreadTicks})
	callCommand(p.ctx, &err, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "UTC"})
	callCommand(p.ctx, &err, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: int64(float64(width) / zoom), Height: int64(float64(height) / zoom), DeviceScaleFactor: zoom,
	})
	callCommand(p.ctx, &err, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: theme}, {Name: "prefers-reduced-motion", Value: motion},
	}})
	if len(headers) > 0 {
		callCommand(p.ctx, &err, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: headers})
	}
	if !o.Now.IsZero() {
		callCommand(p.ctx, &err, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: standingClock(o.Now)})
	}
	return err
}

// standingClock has Date stand still.
func standingClock(now time.Time) string {
	return fmt.Sprintf(`(() => {
	const now = %d, RealDate = Date
	globalThis.Date = class extends RealDate {
		constructor(...given) { given.length ? super(...given) : super(now) }
		static now() { return now }
	}
})()`, now.UnixMilli())
}

// Visit opens a path, and waits until the app has drawn something.
func (p *Page) Visit(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, p.Navigate(path))
}

// Navigate is Visit without a test.
func (p *Page) Navigate(path string) error {
	_, err := chromedp.Call(p.ctx, page.Navigate, page.NavigateParams{URL: p.Origin + path})
	if err != nil {
		return fmt.Errorf("opening %s: %w", path, err)
	}
	return p.AwaitCondition("document.readyState === 'complete' && document.querySelector('h1') !== null")
}

// AwaitCondition waits until an expression of JavaScript is true.
func (p *Page) AwaitCondition(expression string) error {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	var last error
	for {
		holds, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+expression+")"))
		if holds {
			return nil
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			last = err // a page that is navigating has no context
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("the page does not come to %s (%w)\n%s", expression, errors.Join(ctx.Err(), last), p.summarize())
		}
	}
}

// summarize returns what the page shows, for messages: an open dialog first, which covers the rest.
func (p *Page) summarize() string {
	text, _ := chromedp.Run(p.ctx, chromedp.Evaluate[string]("[location.href, ...[...document.querySelectorAll('dialog[open]')].map((d) => 'dialog: ' + d.innerText), document.body.innerText.slice(0, 3000)].join('\\n')"))
	return text
}

// AwaitTrue waits until an expression of JavaScript is true.
func (p *Page) AwaitTrue(t *testing.T, expression string) {
	t.Helper()
	require.NoError(t, p.AwaitCondition(expression))
}

// AwaitText waits until the page shows a text.
func (p *Page) AwaitText(t *testing.T, text string) {
	t.Helper()
	quoted, err := json.Marshal(text)
	require.NoError(t, err)
	p.AwaitTrue(t, "document.body.innerText.includes("+string(quoted)+")")
}

// AwaitNoText waits until the page shows a text no longer.
func (p *Page) AwaitNoText(t *testing.T, text string) {
	t.Helper()
	quoted, err := json.Marshal(text)
	require.NoError(t, err)
	p.AwaitTrue(t, "!document.body.innerText.includes("+string(quoted)+")")
}

// Text returns what the page shows.
func (p *Page) Text(t *testing.T) string {
	t.Helper()
	return Evaluate[string](t, p, "document.body.innerText")
}

// Path returns path, query and fragment of the address.
func (p *Page) Path(t *testing.T) string {
	t.Helper()
	return Evaluate[string](t, p, "location.pathname + location.search + location.hash")
}

// Evaluate returns the value of an expression of JavaScript, or of the promise that it is.
func Evaluate[T any](t *testing.T, p *Page, expression string) T {
	t.Helper()
	value, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoError(t, err, expression)
	return value
}

// CPUTime returns how long the page's main thread has been running so far, in seconds: it does not
// count the time in which other processes have had its core.
func (p *Page) CPUTime(t *testing.T) float64 {
	t.Helper()
	all, err := chromedp.Call(p.ctx, performance.GetMetrics, cdp.Empty{})
	require.NoError(t, err)
	for _, metric := range all.Metrics {
		if metric.Name == "TaskDuration" {
			return metric.Value
		}
	}
	require.Fail(t, "the browser has no metric TaskDuration")
	return 0
}

// Announce lets failures pass whose text contains one of these texts, such as "401 /auth/me".
func (p *Page) Announce(texts ...string) { p.watch.allowFailures(texts) }

// Transferred is how many bytes of answers the page has received, with headers, as sent.
func (p *Page) Transferred() int64 { return p.watch.transferred() }

// Requests returns the paths that the page has asked for, in order.
func (p *Page) Requests() []string { return p.watch.requested() }

func originOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	return u.Scheme + "://" + u.Host
}

// quietTime is how long nothing changes on a page that has drawn.
const quietTime = 400 * time.Millisecond

// AwaitQuiet waits until each answer is complete, and the page has changed nothing for a while or
// has changed all the time: a live page may never rest.
func (p *Page) AwaitQuiet() error {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	for {
		_, err := chromedp.Run(ctx, chromedp.Evaluate[bool](fmt.Sprintf(`new Promise((resolve) => {
	let timer
	const rest = () => { clearTimeout(timer); timer = setTimeout(done, %d) }
	const observer = new MutationObserver(rest)
	const done = () => { observer.disconnect(); resolve(true) }
	observer.observe(document, { subtree: true, childList: true, attributes: true, characterData: true })
	setTimeout(done, 5000)
	rest()
})`, quietTime.Milliseconds()), chromedp.EvalAwaitPromise))
		unanswered := p.watch.unansweredPaths()
		if err != nil {
			return fmt.Errorf("the page does not become quiet, unanswered are %q: %w", unanswered, err)
		}
		if len(unanswered) == 0 {
			return nil
		}
	}
}

// AwaitDrawn waits until the page has drawn what the keys before have changed: what has the focus is
// known some frames after a key.
func (p *Page) AwaitDrawn(t *testing.T) {
	t.Helper()
	Evaluate[bool](t, p, `(async () => {
	for (let frame = 0; frame < 4; frame++) await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))
	return true
})()`)
}

// Failures returns what went wrong on the page and was not announced.
func (p *Page) Failures() []string { return p.watch.failures() }

// NavigateTo opens the address of another site.
func (p *Page) NavigateTo(address string) error {
	if _, err := chromedp.Call(p.ctx, page.Navigate, page.NavigateParams{URL: address}); err != nil {
		return fmt.Errorf("opening %s: %w", address, err)
	}
	return p.AwaitCondition("document.readyState === 'complete' && document.querySelector('h1') !== null")
}
