package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/readapi"
)

// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=hub-namespace,resources=leases,verbs=list

// forwardedHeader marks a request that a replica has forwarded.
const forwardedHeader = "Ot-Hub-Forwarded"

// retryAfterSeconds is the Retry-After of a response without a leader.
const retryAfterSeconds = "2"

// Timeouts of a forwarded request. The response body has none: the caller may end it, and
// pings detect a dead connection.
const (
	dialTimeout   = 5 * time.Second
	answerTimeout = 30 * time.Second
	pingAfter     = 10 * time.Second
	pingTimeout   = 5 * time.Second
)

// Forwarder forwards requests from replicas that are not elected to the elected one, which
// alone knows the fleet.
//
// A request is authorized here, forwarded with the caller's credential, and authorized
// again there. The leader's certificate must have the fingerprint in its Lease, so that the
// credential reaches no one else. A forwarded request is never forwarded again.
type Forwarder struct {
	// Elected is closed when this replica is elected.
	Elected <-chan struct{}
	// Leader finds the elected replica.
	Leader *readapi.LeaderLocator
	// AllowPlainText allows forwarding without TLS. It must be false where this replica serves
	// HTTPS.
	AllowPlainText bool
	// Stopping is closed when the process stops: forwarded streams end.
	Stopping <-chan struct{}
	// AnswerTimeout bounds the wait for response headers; 30 s by default.
	AnswerTimeout time.Duration

	mu    sync.Mutex
	route *route
}

// route is a proxy to the last known leader.
type route struct {
	address   readapi.ReplicaAddress
	transport *http.Transport
	proxy     http.Handler
}

// Wrap returns a handler that uses here while this replica is elected, and forwards
// otherwise.
func (f *Forwarder) Wrap(here http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		select {
		case <-f.Elected:
			here.ServeHTTP(w, request)
			return
		default:
		}
		if err := f.forward(w, request); err != nil {
			writeUnavailable(w, err)
		}
	})
}

func (f *Forwarder) forward(w http.ResponseWriter, request *http.Request) error {
	if request.Header.Get(forwardedHeader) != "" {
		return errors.New("this replica of the hub is not elected, but another replica forwarded to it")
	}
	to, err := f.Leader.Locate(request.Context())
	if err != nil {
		return err
	}
	r, err := f.routeTo(to)
	if err != nil {
		return err
	}
	if request.URL.Path == root+"events" {
		f.forwardStream(r, w, request)
		return nil
	}
	r.proxy.ServeHTTP(w, request)
	return nil
}

// forwardStream forwards a stream of events as the elected replica sends one: it ends with
// this process, and with a reader that does not take a line in time.
func (f *Forwarder) forwardStream(r *route, w http.ResponseWriter, request *http.Request) {
	ctx, cancel := context.WithCancel(request.Context())
	defer cancel()
	go func() {
		select {
		case <-f.Stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	r.proxy.ServeHTTP(&streamWriter{w, http.NewResponseController(w)}, request.WithContext(ctx))
}

// streamWriter gives each write a deadline, up to the flush that follows it. Invariant: no deadline
// is left when nothing is being written: with HTTP/2, one that passes ends the stream.
type streamWriter struct {
	http.ResponseWriter
	controller *http.ResponseController
}

func (w *streamWriter) Write(line []byte) (int, error) {
	_ = w.controller.SetWriteDeadline(time.Now().Add(streamWriteTimeout)) // writers without deadlines are those of tests
	return w.ResponseWriter.Write(line)
}

// FlushError is for http.ResponseController, by which the proxy flushes each write.
func (w *streamWriter) FlushError() error {
	defer func() { _ = w.controller.SetWriteDeadline(time.Time{}) }()
	return w.controller.Flush()
}

// Unwrap is for http.ResponseController.
func (w *streamWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func writeUnavailable(w http.ResponseWriter, err error) {
	w.Header().Set("Retry-After", retryAfterSeconds)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusServiceUnavailable)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error() + ": try again"}) // the caller is gone
}

func (f *Forwarder) routeTo(to readapi.ReplicaAddress) (*route, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.route != nil && f.route.address == to {
		return f.route, nil
	}
	r, err := f.newRoute(to)
	if err != nil {
		return nil, err
	}
	if f.route != nil {
		f.route.transport.CloseIdleConnections()
	}
	f.route = r
	return r, nil
}

func (f *Forwarder) newRoute(to readapi.ReplicaAddress) (*route, error) {
	target, err := url.Parse(to.URL)
	if err != nil || target.Host == "" || target.User != nil || target.Path+target.RawQuery+target.Fragment != "" {
		return nil, fmt.Errorf("the Lease of the elected replica of the hub has an invalid address, %q", to.URL)
	}
	pinned := target.Scheme == "https" && to.Fingerprint != ""
	if plain := f.AllowPlainText && target.Scheme == "http"; !pinned && !plain {
		return nil, fmt.Errorf("the elected replica of the hub serves at %s without a known certificate: no credential is sent there", to.URL)
	}
	t := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: answerTimeout,
		IdleConnTimeout:       90 * time.Second,
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		TLSClientConfig:       readapi.PinCertificate(to.Fingerprint),
	}
	if f.AnswerTimeout > 0 {
		t.ResponseHeaderTimeout = f.AnswerTimeout
	}
	proxy := &httputil.ReverseProxy{
		Transport: t,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Set(forwardedHeader, "true")
			if credential := callerCredential(r.In); credential != "" {
				r.Out.Header.Set("Authorization", credential)
			}
		},
		// Stream long responses.
		FlushInterval: -1,
		ModifyResponse: func(response *http.Response) error {
			if response.StatusCode == http.StatusServiceUnavailable {
				f.Leader.Invalidate() // it may have lost the election
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, request *http.Request, err error) {
			f.Leader.Invalidate()
			logf.FromContext(request.Context()).V(1).Info("Failed to forward request to the elected replica", "url", to.URL, "error", err.Error())
			writeUnavailable(w, fmt.Errorf("the elected replica of the hub does not answer at %s: %w", to.URL, err))
		},
		ErrorLog: log.New(io.Discard, "", 0), // aborted responses: the caller sees them
	}
	return &route{address: to, transport: t, proxy: proxy}, nil
}
