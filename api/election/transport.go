package election

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"
)

// answerGrace is how long a write is waited for after its context has ended: a write that
// was given up may still be executed, and keeps the Lease from being released.
const answerGrace = 5 * time.Second

// WrapTransport refuses writes that this process must not send, and counts those in flight.
// Events are neither: they say what has happened, also after the Lease was released.
func (l *Lock) WrapTransport(next http.RoundTripper) http.RoundTripper {
	return guardedTransport{next, l}
}

type guardedTransport struct {
	http.RoundTripper
	lock *Lock
}

// RoundTrip implements http.RoundTripper.
func (t guardedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodGet || request.Method == http.MethodHead || strings.Contains(request.URL.Path, "/apis/events.k8s.io/") {
		return t.RoundTripper.RoundTrip(request)
	}
	begun, err := t.lock.beginWrite(request.Context())
	if err != nil {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, err
	}
	ctx, cancel := withGrace(request.Context())
	response, err := t.RoundTripper.RoundTrip(request.WithContext(ctx))
	// A server error is no answer: the API server may have given up a request that its
	// storage still executes.
	t.lock.endWrite(begun, err == nil && response.StatusCode < http.StatusInternalServerError)
	if err != nil {
		cancel()
		return nil, err
	}
	response.Body = cancelledBody{response.Body, cancel}
	return response, nil
}

func (l *Lock) beginWrite(ctx context.Context) (begun time.Time, err error) {
	if err := ctx.Err(); err != nil {
		return begun, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	begun = l.now()
	return begun, l.authority.beginWrite(begun)
}

func (l *Lock) endWrite(begun time.Time, answered bool) {
	l.mu.Lock()
	l.authority.endWrite(begun, answered)
	idle := l.authority.inFlight == 0
	l.mu.Unlock()
	if idle {
		select {
		case l.ended <- struct{}{}:
		default:
		}
	}
}

// withGrace returns a context that ends answerGrace after ctx has.
func withGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(answerGrace, cancel) })
	return later, func() { stop(); cancel() }
}

// cancelledBody ends the context of its request when it is closed.
type cancelledBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (b cancelledBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}
