package relay

import (
	"context"
	"errors"
	"io"
	"net/http"
)

// uploadSize is what the requests of one context send to the hub's API server, one after another.
type uploadSize struct{ requests, bytes int }

type uploadSizeKey struct{}

// measureUpload returns a context whose requests are measured where their client's transport is
// wrapped by MeasureUploads.
func measureUpload(ctx context.Context) (context.Context, *uploadSize) {
	size := &uploadSize{}
	return context.WithValue(ctx, uploadSizeKey{}, size), size
}

// errNotMeasured: without MeasureUploads a report would be bounded by nothing.
var errNotMeasured = errors.New("the hub's client does not measure what it writes")

// MeasureUploads wraps the transport of a client that copies reports. The objects are encoded
// for the request as it is, and the answer has what is stored: managed fields add to a new object.
func MeasureUploads(next http.RoundTripper) http.RoundTripper { return measuringTransport{next} }

type measuringTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t measuringTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	size, _ := request.Context().Value(uploadSizeKey{}).(*uploadSize)
	response, err := t.next.RoundTrip(request)
	if size == nil {
		return response, err
	}
	size.requests++
	if request.Body == nil || err == nil && isTurnedAway(response.StatusCode) {
		return response, err
	}
	// What is refused counts: it is decoded and validated.
	sent := max(0, int(request.ContentLength))
	size.bytes += sent
	if err == nil {
		response.Body = &measuredBody{response.Body, size, sent}
	}
	return response, err
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (t measuringTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

// isTurnedAway reports whether an object is not stored for no reason of its own: a conflict, or
// an API server that is too busy.
func isTurnedAway(status int) bool {
	return status == http.StatusConflict || status == http.StatusTooManyRequests
}

// measuredBody counts what an answer has more than its request.
type measuredBody struct {
	io.ReadCloser
	size    *uploadSize
	counted int
}

// Read implements io.Reader.
func (b *measuredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.counted -= n
	b.size.bytes += max(0, -b.counted)
	b.counted = max(0, b.counted)
	return n, err
}
