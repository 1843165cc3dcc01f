package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Limit bounds the answers that come through next, which must not decompress them.
// exceeded is called once for each answer that exceeds a limit, because decoders drop the
// cause of an error; it must not block, and may be nil.
//
// The server does not decide how long this process waits, nor what it logs: its warnings
// are dropped, and a request to retry later is one to retry after retryDelay.
func Limit(next http.RoundTripper, l Limits, exceeded func(*LimitError)) http.RoundTripper {
	if exceeded == nil {
		exceeded = func(*LimitError) {}
	}
	return &limitingTransport{Limits: l, next: next, exceeded: exceeded, events: rate.NewLimiter(rate.Limit(l.WatchRate), int(l.WatchBurst))}
}

type limitingTransport struct {
	Limits
	next     http.RoundTripper
	exceeded func(*LimitError)
	// events is shared by all watches: a server may end and restart them.
	events *rate.Limiter
	// total is the cost of all answers.
	total atomic.Int64
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (t *limitingTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip implements http.RoundTripper.
func (t *limitingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	name := request.Method + " " + request.URL.Path
	if bound := t.totalBound(); bound != "" {
		return nil, t.report(name, bound)
	}
	ctx, cancel := context.WithCancelCause(request.Context())
	sent := request.Clone(ctx)
	sent.Header.Del("Accept-Encoding")
	if accept := sent.Header.Get("Accept"); accept != "" {
		sent.Header.Set("Accept", textual(accept))
	}
	response, err := t.next.RoundTrip(sent)
	if err != nil {
		cancel(nil)
		if isHeaderTooLarge(err) {
			err = t.report(name, "has headers of more than "+formatBytes(MaxHeaderBytes))
		}
		return nil, err
	}
	if bound := t.refusal(response); bound != "" {
		_ = response.Body.Close()
		cancel(nil)
		return nil, t.report(name, bound)
	}
	boundRetryAfter(ctx, response)
	response.Header.Del("Warning")
	body := &limitedBody{transport: t, next: response.Body, request: name, cancel: cancel}
	body.cause = func() error { return context.Cause(ctx) }
	switch query := request.URL.Query(); {
	case response.StatusCode < 200 || response.StatusCode > 299:
		body.maxBytes = t.ErrorBytes
	case request.Method == http.MethodGet && (query.Get("watch") == "true" || query.Get("watch") == "1"):
		body.isWatch = true
	}
	if !body.isWatch {
		body.startTimer()
	}
	response.Body = body
	return response, nil
}

// boundRetryAfter replaces how long a server that cannot serve now asks to wait. client-go
// retries only with that header, up to ten times. Without time for another attempt the
// header is dropped, so that the caller gets the server's error and not a timeout. A
// request without a deadline is a list or watch, whose reflector retries it.
func boundRetryAfter(ctx context.Context, response *http.Response) {
	isAsked := response.Header.Get("Retry-After") != "" && (response.StatusCode == http.StatusTooManyRequests || response.StatusCode >= 500)
	response.Header.Del("Retry-After")
	deadline, ok := ctx.Deadline()
	if isAsked && ok && time.Until(deadline) > 2*retryDelay {
		response.Header.Set("Retry-After", strconv.Itoa(int(retryDelay/time.Second)))
	}
}

// report calls exceeded and returns its error.
func (t *limitingTransport) report(request, bound string) *LimitError {
	err := &LimitError{Request: request, Bound: bound}
	t.exceeded(err)
	return err
}

// textual returns an Accept header without the binary encodings: a byte of them can stand
// for a whole object, and Limit meters JSON.
func textual(accept string) string {
	var all []string
	for _, part := range strings.Split(accept, ",") {
		if !isBinary(part) {
			all = append(all, strings.TrimSpace(part))
		}
	}
	if len(all) == 0 {
		return "application/json"
	}
	return strings.Join(all, ",")
}

func isBinary(mediaType string) bool {
	return strings.Contains(mediaType, "protobuf") || strings.Contains(mediaType, "cbor")
}

// refusal returns why an answer is not read at all; empty if it is.
func (t *limitingTransport) refusal(response *http.Response) string {
	if encoding := response.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return "is compressed, which the request does not allow"
	}
	if given := response.Header.Get("Content-Type"); given != "" {
		mediaType, _, err := mime.ParseMediaType(given)
		if err != nil || isBinary(strings.ToLower(mediaType)) {
			return "has a content type that the request does not allow"
		}
	}
	if limit := max(t.AnswerCost, t.ErrorBytes); response.ContentLength > limit {
		return "is larger than " + formatBytes(limit)
	}
	return ""
}

// isHeaderTooLarge reports whether MaxResponseHeaderBytes was exceeded, for which neither
// version of HTTP has a type of error.
func isHeaderTooLarge(err error) bool {
	for _, text := range []string{"server response headers exceeded", "header list larger than", "header list too large", "COMPRESSION_ERROR"} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// limitedBody is the body of one answer.
type limitedBody struct {
	transport *limitingTransport
	next      io.ReadCloser
	request   string
	isWatch   bool
	// maxBytes bounds an error's body; 0 for none.
	maxBytes int64
	cancel   context.CancelCauseFunc
	cause    func() error

	meter meter
	read  int64
	err   error

	mu    sync.Mutex
	timer *time.Timer
}

// Read implements io.Reader.
func (b *limitedBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.next.Read(p)
	if late := (*timeoutError)(nil); err != nil && errors.As(b.cause(), &late) {
		err = late
	}
	b.read += int64(n)
	if bound := b.meterRead(p[:n]); bound != "" {
		b.err = b.transport.report(b.request, bound)
		b.cancel(b.err)
		return 0, b.err
	}
	b.err = err
	return n, err
}

// meterRead meters what was read, and returns which bound it exceeds; empty for none.
func (b *limitedBody) meterRead(p []byte) string {
	t := b.transport
	if b.maxBytes > 0 && b.read > b.maxBytes {
		return "has an error of more than " + formatBytes(b.maxBytes)
	}
	for len(p) > 0 {
		before := b.meter.cost
		n, ended := b.meter.add(p)
		p = p[n:]
		t.total.Add(b.meter.cost - before)
		if bound := t.totalBound(); bound != "" {
			return bound
		}
		switch {
		case !b.isWatch && b.meter.cost > t.AnswerCost:
			return fmt.Sprintf("is larger than %s, counting %d bytes for each value", formatBytes(t.AnswerCost), valueCost)
		case b.isWatch && b.meter.cost > t.EventCost:
			return fmt.Sprintf("has an event larger than %s, counting %d bytes for each value", formatBytes(t.EventCost), valueCost)
		case b.isWatch && ended:
			cost := int(max(eventCost, b.meter.cost))
			b.meter.cost = 0
			b.stopTimer()
			if !t.events.AllowN(time.Now(), cost) {
				return fmt.Sprintf("has too many events: at most %s at once and %s per second, counting at least %s for each event",
					formatBytes(t.WatchBurst), formatBytes(t.WatchRate), formatBytes(eventCost))
			}
		}
	}
	if b.isWatch && b.meter.depth > 0 {
		b.startTimer()
	}
	return ""
}

// totalBound returns what the answers of this transport exceed together; empty for nothing.
func (t *limitingTransport) totalBound() string {
	if t.TotalCost == 0 || t.total.Load() <= t.TotalCost {
		return ""
	}
	return fmt.Sprintf("is one of many that are larger than %s together, counting %d bytes for each value", formatBytes(t.TotalCost), valueCost)
}

// startTimer bounds the time for what is being read, unless it is bounded already.
func (b *limitedBody) startTimer() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer == nil && b.transport.AnswerTime > 0 {
		b.timer = time.AfterFunc(b.transport.AnswerTime, func() { b.cancel(&timeoutError{b.request}) })
	}
}

func (b *limitedBody) stopTimer() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
}

// Close implements io.Closer.
func (b *limitedBody) Close() error {
	b.stopTimer()
	err := b.next.Close()
	b.cancel(nil)
	return err
}
