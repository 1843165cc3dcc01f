package browser_test

import (
	"errors"
	"image"
	"image/color"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/browser"
)

func startBrowser(t *testing.T) *browser.Browser {
	t.Helper()
	b, err := browser.Start()
	if errors.Is(err, browser.ErrNotInstalled) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(b.Stop)
	return b
}

// faultyPages have one fault each.
var faultyPages = map[string]struct {
	html string
	// script is a file of its own, which the policy of the page allows.
	script      string
	wantFailure string
}{
	"nothing wrong":             {html: `<p>Fleet</p>`, script: "console.warn('careful'); fetch('/data')"},
	"console error":             {script: "console.error('broken', 7)", wantFailure: "console: broken 7"},
	"uncaught exception":        {script: "null.x", wantFailure: "uncaught exception: Uncaught TypeError"},
	"unhandled rejection":       {script: "Promise.reject(new Error('lost'))", wantFailure: "uncaught exception: Uncaught (in promise) Error: lost"},
	"inline script":             {html: "<script>1</script>", wantFailure: "Content-Security-Policy"},
	"inline style":              {html: `<p style="color: red">x</p>`, wantFailure: "Content-Security-Policy"},
	"script that evaluates":     {script: "try { eval('1') } catch {}", wantFailure: "Content-Security-Policy"},
	"image of another origin":   {html: `<img src="http://localhost:9/x.png" alt="">`, wantFailure: "http://localhost:9/x.png"},
	"fetch from another origin": {script: "fetch('http://localhost:9/x').catch(() => {})", wantFailure: "Content-Security-Policy"},
	"missing file":              {script: "fetch('/missing')", wantFailure: "request: 404 /missing"},
	"ended connection":          {script: "fetch('/ended').catch(() => {})", wantFailure: "net::ERR_"},
}

func serveFaulty(t *testing.T) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Query().Get("page")
		switch r.URL.Path {
		case "/favicon.ico", "/data":
			w.WriteHeader(http.StatusNoContent)
		case "/ended":
			panic(http.ErrAbortHandler)
		case "/script.js":
			w.Header().Set("Content-Type", "text/javascript")
			_, _ = w.Write([]byte(faultyPages[name].script))
		case "/":
			w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = w.Write([]byte(`<!doctype html><html lang="en"><title>x</title><main><h1>x</h1>` + faultyPages[name].html + `<script src="/script.js?page=` + name + `"></script>`))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	return server
}

// A page that does what a test must not overlook is found out.
func TestFaultsAreNoticed(t *testing.T) {
	b, server := startBrowser(t), serveFaulty(t)
	for name, tt := range faultyPages {
		t.Run(name, func(t *testing.T) {
			p, closePage, err := b.OpenUnwatched(browser.Options{Origin: server.URL})
			require.NoError(t, err)
			defer closePage()
			require.NoError(t, p.Navigate("/?page="+strings.ReplaceAll(name, " ", "%20")))
			require.NoError(t, p.AwaitQuiet())
			failures := strings.Join(p.Failures(), "\n")
			if tt.wantFailure == "" {
				assert.Empty(t, failures)
				return
			}
			assert.Contains(t, failures, tt.wantFailure)
			p.Announce("404 /missing")
			if name == "missing file" {
				assert.Empty(t, p.Failures(), "it was announced")
			}
		})
	}
}

// A page that changes nothing while it waits for an answer is not quiet.
func TestQuietPageHasItsAnswers(t *testing.T) {
	b := startBrowser(t)
	answer := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/":
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = w.Write([]byte(`<!doctype html><html lang="en"><title>x</title><main><h1>x</h1><script>fetch('/late'); new EventSource('/events')</script>`))
		case "/late":
			time.AfterFunc(2*time.Second, func() { close(answer) })
			<-answer
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	t.Cleanup(server.Close)
	p, closePage, err := b.OpenUnwatched(browser.Options{Origin: server.URL})
	require.NoError(t, err)
	t.Cleanup(closePage)
	require.NoError(t, p.Navigate("/"))
	require.NoError(t, p.AwaitQuiet())
	select {
	case <-answer:
	default:
		t.Error("the page was quiet before its answer came")
	}
}

func TestViolationsAreFound(t *testing.T) {
	b := startBrowser(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'self'")
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		text := `<!doctype html><html lang="en"><title>x</title><main><h1>x</h1><button>Approve</button></main>`
		if r.URL.Path == "/bad" {
			text = strings.Replace(text, "<button>Approve", `<button>`, 1)
		}
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(server.Close)
	p, closePage, err := b.OpenUnwatched(browser.Options{Origin: server.URL})
	require.NoError(t, err)
	t.Cleanup(closePage)
	for path, want := range map[string]int{"/": 0, "/bad": 1} {
		require.NoError(t, p.Navigate(path))
		violations, err := p.FindViolations()
		if errors.Is(err, browser.ErrAxeMissing) {
			t.Skip(err)
		}
		require.NoError(t, err)
		assert.Len(t, violations, want, "%s: %s", path, violations)
	}
}

func TestDifference(t *testing.T) {
	draw := func(width int, shade uint8) image.Image {
		picture := image.NewRGBA(image.Rect(0, 0, width, 10))
		for i := range 10 {
			for j := range width {
				picture.Set(j, i, color.RGBA{R: 100, G: 100, B: 100, A: 255})
			}
		}
		picture.Set(3, 3, color.RGBA{R: shade, G: 100, B: 100, A: 255})
		return picture
	}
	assert.Zero(t, browser.Difference(draw(10, 100), draw(10, 100)))
	assert.Zero(t, browser.Difference(draw(10, 100), draw(10, 130)), "the edges of text differ by as much")
	assert.InDelta(t, 0.01, browser.Difference(draw(10, 100), draw(10, 200)), 1e-9)
	assert.InDelta(t, 1, browser.Difference(draw(10, 100), draw(11, 100)), 0)
}
