package helm

import (
	"context"
	"io"
	"net/http"
	"sync"
)

// fencedTransport refuses requests after its context has ended, cancels running ones
// then, and sends mutating requests only while fence returns no error.
type fencedTransport struct {
	ctx   context.Context
	fence func() error
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (g *fencedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if err := context.Cause(g.ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(request.Context())
	stop := context.AfterFunc(g.ctx, func() { cancel(context.Cause(g.ctx)) })
	end := func() { stop(); cancel(nil) }
	if isMutating(request.Method) {
		// The check is the last step before sending: the process may have been paused
		// until now.
		if err := g.fence(); err != nil {
			end()
			return nil, err
		}
	}
	response, err := g.next.RoundTrip(request.WithContext(ctx))
	if err != nil {
		end()
		return nil, err
	}
	response.Body = &closingBody{ReadCloser: response.Body, onClose: end}
	return response, nil
}

func isMutating(method string) bool {
	return method != http.MethodGet && method != http.MethodHead && method != http.MethodOptions
}

// closingBody calls onClose when the body is closed.
type closingBody struct {
	io.ReadCloser
	once    sync.Once
	onClose func()
}

// Close implements io.Closer.
func (c *closingBody) Close() error {
	err := c.ReadCloser.Close()
	c.once.Do(c.onClose)
	return err
}
