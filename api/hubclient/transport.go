// Package hubclient makes connections between hub and members, whichever of them
// dials: requests that end in time, watches of a mailbox that are known to tell
// what happens, and a token that may be renewed under a connection.
package hubclient

import (
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A connection on which nothing comes is asked for a sign of life, and given up
// without one: a watch has no timeout, and would hang with it.
const (
	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second
)

// newTransport of one connection, on which nothing is waited for without end.
func newTransport(cfg *rest.Config, timeout time.Duration) (*http.Transport, error) {
	tlsConfig, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, err
	}
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: timeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:       tlsConfig,
		TLSHandshakeTimeout:   timeout,
		ResponseHeaderTimeout: timeout,
		IdleConnTimeout:       90 * time.Second,
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
	if cfg.Proxy != nil {
		t.Proxy = cfg.Proxy
	}
	if cfg.Dial != nil {
		t.DialContext = cfg.Dial
	}
	return t, nil
}

// NewClient makes a client for a few requests, each of which ends in time. Its
// connections go with done.
func NewClient(cfg *rest.Config, timeout time.Duration, options client.Options) (c client.Client, done func(), err error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = timeout
	t, err := newTransport(cfg, timeout)
	if err != nil {
		return nil, nil, err
	}
	wrapped, err := rest.HTTPWrappersForConfig(cfg, t)
	if err != nil {
		return nil, nil, err
	}
	options.HTTPClient = newHTTPClient(wrapped, timeout)
	c, err = client.New(cfg, options)
	return c, t.CloseIdleConnections, err
}

// newHTTPClient goes nowhere else than it is sent: API servers redirect nobody, and one
// that does would have the token sent to whom it likes, or whoever asks it ask what
// only they reach. No timeout is 0.
func newHTTPClient(through http.RoundTripper, timeout time.Duration) *http.Client {
	return &http.Client{Transport: through, Timeout: timeout, CheckRedirect: func(to *http.Request, _ []*http.Request) error {
		return fmt.Errorf("it redirects to %s, which no API server does", to.URL.Host)
	}}
}

// Token is a bearer token that may be replaced while connections use it: one that
// was renewed needs no new connection. The zero value is none.
type Token struct{ value atomic.Pointer[string] }

// Set has the token sent with each request from now on.
func (t *Token) Set(value string) { t.value.Store(&value) }

// Get returns the token that is sent by now.
func (t *Token) Get() string {
	if value := t.value.Load(); value != nil {
		return *value
	}
	return ""
}

// tokenTransport sends the token that there is by now.
type tokenTransport struct {
	token *Token
	next  http.RoundTripper
}

func (b *tokenTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if token := b.token.Get(); token != "" && request.Header.Get("Authorization") == "" {
		request = request.Clone(request.Context())
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return b.next.RoundTrip(request)
}

// WrappedRoundTripper is for those who look for what is below.
func (b *tokenTransport) WrappedRoundTripper() http.RoundTripper { return b.next }

// DedicatedConfig returns a configuration for clients that make their own: what they send goes
// through one transport, which wrap, unless it is nil, goes around, and each request
// ends in time. Its connections go with done.
func DedicatedConfig(cfg *rest.Config, timeout time.Duration, wrap func(http.RoundTripper) http.RoundTripper) (own *rest.Config, done func(), err error) {
	t, err := newTransport(cfg, timeout)
	if err != nil {
		return nil, nil, err
	}
	// Without TLS options an address without a scheme would be taken for one of HTTP.
	host, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the API server's address %q: %w", cfg.Host, err)
	}
	own = rest.CopyConfig(cfg)
	own.Host, own.APIPath, own.Timeout = host.String(), "", timeout
	own.TLSClientConfig, own.Proxy, own.Dial = rest.TLSClientConfig{}, nil, nil
	own.Transport = noRedirectTransport{t}
	if wrap != nil {
		own.Transport = wrap(own.Transport)
	}
	return own, t.CloseIdleConnections, nil
}

// noRedirectTransport goes nowhere else than it is sent, as newHTTPClient does.
type noRedirectTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (s noRedirectTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := s.next.RoundTrip(request)
	if err == nil && response.StatusCode >= 300 && response.StatusCode < 400 && response.Header.Get("Location") != "" {
		_ = response.Body.Close()
		return nil, fmt.Errorf("it redirects to %q, which no API server does", response.Header.Get("Location"))
	}
	return response, err
}
