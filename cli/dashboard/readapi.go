package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/ui"
)

const (
	// connectTimeout bounds how long a connection to the elected replica may take.
	connectTimeout = 20 * time.Second
	// connectionAge ends the use of a connection: the token that kubectl ot asks for is valid
	// for 10 minutes.
	connectionAge = 5 * time.Minute
	// connectInterval is the shortest time between two attempts after one that failed.
	connectInterval = 2 * time.Second
	// streamIdle ends a stream without a line for so long: its replica has died without a word.
	streamIdle = 3 * readapi.HeartbeatInterval
	// maxRefusalBytes bounds what is read of a refusal.
	maxRefusalBytes = 4096
)

// ReadAPI passes requests on to the hub's read API. It connects when it is first asked, and
// anew once the elected replica or the port-forward is gone.
type ReadAPI struct {
	// Open connects to the elected replica.
	Open func(context.Context) (*connect.ReadAPI, error)
	now  func() time.Time
	// streamIdle is that of tests.
	streamIdle time.Duration

	mu      sync.Mutex
	current *connection
	// opening serializes attempts; failed is the last one's error, and when it came.
	opening  sync.Mutex
	failed   error
	failedAt time.Time
}

// NewReadAPI returns a ReadAPI.
func NewReadAPI(open func(context.Context) (*connect.ReadAPI, error)) *ReadAPI {
	return &ReadAPI{Open: open, now: time.Now, streamIdle: streamIdle}
}

// connection counts its requests. It is closed once nobody uses it and it is retired.
type connection struct {
	api      *connect.ReadAPI
	base     *url.URL
	openedAt time.Time

	requests int
	retired  bool
}

// acquire returns the connection for one request, and opens one where there is none.
func (r *ReadAPI) acquire(ctx context.Context) (*connection, error) {
	if c := r.useCurrent(); c != nil {
		return c, nil
	}
	r.opening.Lock()
	defer r.opening.Unlock()
	if c := r.useCurrent(); c != nil {
		return c, nil
	}
	if r.failed != nil && r.now().Sub(r.failedAt) < connectInterval {
		return nil, r.failed
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	api, err := r.Open(ctx)
	if err == nil {
		var base *url.URL
		if base, err = url.Parse(api.BaseURL); err == nil {
			r.failed = nil
			c := &connection{api: api, base: base, openedAt: r.now(), requests: 1}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.current = c
			return c, nil
		}
		api.Close()
	}
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		r.failed, r.failedAt = err, r.now()
	}
	return nil, err
}

// useCurrent returns the current connection for one more request; nil without one that is new
// enough.
func (r *ReadAPI) useCurrent() *connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.current
	if c == nil {
		return nil
	}
	if r.now().Sub(c.openedAt) >= connectionAge {
		r.retireConnection(c)
		return nil
	}
	c.requests++
	return c
}

// endRequest ends one request; a broken connection is not used again.
func (r *ReadAPI) endRequest(c *connection, broken bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.requests--
	if broken {
		r.retireConnection(c)
		return
	}
	c.closeUnused()
}

// retireConnection takes a connection out of use. The caller has the lock.
func (r *ReadAPI) retireConnection(c *connection) {
	c.retired = true
	if r.current == c {
		r.current = nil
	}
	c.closeUnused()
}

func (c *connection) closeUnused() {
	if c.retired && c.requests == 0 && c.api != nil {
		c.api.Close()
		c.api = nil
	}
}

// Close ends the connection when its requests have ended.
func (r *ReadAPI) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil {
		r.retireConnection(r.current)
	}
}

// forwardedHeaders are all that the read API is sent of a request.
var forwardedHeaders = []string{"Accept", "If-None-Match", "Last-Event-ID"}

// RoundTrip sends a GET to the elected replica with the caller's credential; again by a new
// connection where the one before is broken or its token has expired.
func (r *ReadAPI) RoundTrip(request *http.Request) (*http.Response, error) {
	for last := false; ; last = true {
		c, err := r.acquire(request.Context())
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(request.Context())
		out, err := http.NewRequestWithContext(ctx, request.Method, c.base.JoinPath(request.URL.Path).String(), nil)
		if err != nil {
			cancel()
			r.endRequest(c, false)
			return nil, err
		}
		out.URL.RawQuery = request.URL.RawQuery
		for _, name := range forwardedHeaders {
			if value := request.Header.Get(name); value != "" {
				out.Header.Set(name, value)
			}
		}
		response, err := c.api.HTTP.Transport.RoundTrip(out)
		if request.Context().Err() != nil {
			r.endRequest(c, false)
			if err == nil {
				_ = response.Body.Close()
			}
			cancel()
			return nil, request.Context().Err()
		}
		if err == nil && response.StatusCode != http.StatusUnauthorized {
			body := &countedBody{ReadCloser: response.Body, page: request.Context(), end: func(broken bool) {
				cancel()
				r.endRequest(c, broken)
			}}
			if isStream(response) {
				body.idle, body.timer = r.streamIdle, time.AfterFunc(r.streamIdle, cancel)
			}
			response.Body = body
			return response, nil
		}
		if err == nil {
			err = readapi.ErrUnauthorized
			_ = response.Body.Close()
		}
		cancel()
		r.endRequest(c, true)
		if last {
			return nil, err
		}
	}
}

func isStream(response *http.Response) bool {
	mediaType, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	return err == nil && mediaType == streamType
}

// countedBody ends its request once it was read. One that ends early shows that its connection is
// broken, as by a replica that died; so does a stream that is idle.
type countedBody struct {
	io.ReadCloser
	// page ends when nobody reads the answer any more.
	page   context.Context
	end    func(broken bool)
	broken bool
	once   sync.Once
	// timer ends a stream; nil for other answers.
	timer *time.Timer
	idle  time.Duration
}

// Read implements io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && b.page.Err() == nil {
		b.broken = true
	}
	if b.timer != nil && err == nil {
		b.timer.Reset(b.idle)
	}
	return n, err
}

// Close implements io.Closer.
func (b *countedBody) Close() error {
	if b.timer != nil {
		b.timer.Stop()
	}
	err := b.ReadCloser.Close()
	b.once.Do(func() { b.end(b.broken) })
	return err
}

// Handler answers requests of the app.
func (r *ReadAPI) Handler() http.Handler {
	return &httputil.ReverseProxy{
		Rewrite:        func(*httputil.ProxyRequest) {},
		Transport:      r,
		FlushInterval:  -1, // streams of events
		ModifyResponse: checkAnswer,
		ErrorHandler:   writeUnavailable,
		ErrorLog:       discardLog,
	}
}

// answerTypes are those of the read API.
var answerTypes = []string{"application/json", "text/csv", streamType}

const streamType = "text/event-stream"

// answerHeaders are all that is passed on of an answer.
var answerHeaders = []string{"Cache-Control", "Content-Disposition", "Content-Length", "Content-Type", "Etag", "Retry-After", "X-Accel-Buffering"}

// tooLong are the refusals of proxies for which asking again is of no use.
var tooLong = []int{http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong, http.StatusRequestHeaderFieldsTooLarge}

var errTooLong = errors.New("the request is too long for the proxy in front of --read-api: choose fewer, or have the proxy accept longer addresses")

// checkAnswer refuses what no read API answers, and says what a refusal means.
func checkAnswer(response *http.Response) error {
	for name := range response.Header {
		if !slices.Contains(answerHeaders, name) {
			response.Header.Del(name)
		}
	}
	mediaType, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	isAnswer := err == nil && slices.Contains(answerTypes, mediaType)
	switch {
	case response.StatusCode == http.StatusNotModified, isAnswer && (response.StatusCode < 300 || response.StatusCode >= 400):
		return nil
	case response.StatusCode == http.StatusForbidden: // by the filter that authorizes, in plain text
		return replaceAnswer(response, readapi.ErrForbidden)
	case slices.Contains(tooLong, response.StatusCode):
		return replaceAnswer(response, errTooLong)
	default:
		return fmt.Errorf("what answers is no read API: status %d, and not JSON", response.StatusCode)
	}
}

// replaceAnswer replaces an answer by an error of the same status.
func replaceAnswer(response *http.Response, because error) error {
	_, _ = io.CopyN(io.Discard, response.Body, maxRefusalBytes)
	_ = response.Body.Close()
	text, err := json.Marshal(readapi.ErrorAnswer{Error: because.Error()})
	if err != nil {
		return err
	}
	response.Body = io.NopCloser(bytes.NewReader(text))
	response.ContentLength = int64(len(text))
	response.Header.Set("Content-Length", strconv.Itoa(len(text)))
	response.Header.Set("Content-Type", "application/json")
	return nil
}

// writeUnavailable says why the read API did not answer. The app asks again.
func writeUnavailable(w http.ResponseWriter, request *http.Request, err error) {
	if request.Context().Err() != nil {
		return // the page is closed
	}
	w.Header().Set("Retry-After", strconv.Itoa(int(connectInterval.Seconds())))
	message := v1alpha1.SanitizeText(err.Error(), maxRefusalBytes)
	ui.WriteError(w, ui.WithStatus(http.StatusServiceUnavailable, fmt.Errorf("%s; connecting again", message)))
}

// MayRead reports whether the read API answers the caller.
func (r *ReadAPI) MayRead(ctx context.Context, _ *ui.Caller) (bool, error) {
	err := r.Check(ctx)
	if errors.Is(err, readapi.ErrForbidden) {
		return false, nil
	}
	return err == nil, err
}

// Check returns why the read API does not answer.
func (r *ReadAPI) Check(ctx context.Context) error {
	c, err := r.acquire(ctx)
	if err != nil {
		return err
	}
	var summary readapi.Summary
	err = c.api.Get(ctx, "summary", nil, &summary)
	var answered *readapi.Error
	r.endRequest(c, err != nil && !errors.As(err, &answered) && ctx.Err() == nil)
	return err
}
